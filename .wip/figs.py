import sys,os,re
d=sys.argv[1]
tot=0;files=[];types=0
def strip(text):
    # drop #[cfg(test)] mod ... { } at top level to end
    out=[];skip=False
    lines=text.split('\n');i=0
    while i<len(lines):
        if lines[i].strip()=='#[cfg(test)]' and i+1<len(lines) and re.match(r'\s*(pub(\(.*\))? )?mod \w+ \{',lines[i+1]):
            ind=len(lines[i])-len(lines[i].lstrip())
            j=i+1
            while j<len(lines) and not lines[j].startswith(' '*ind+'}'): j+=1
            i=j+1; continue
        out.append(lines[i]);i+=1
    return out
big=[]
roots=[os.path.join(d,'src')]+[os.path.join(d,'crates',c,'src') for c in ('core',) if os.path.isdir(os.path.join(d,'crates',c))]
rooms={}
for r in roots:
  for p,_,fs in os.walk(r):
    for f in fs:
      if not f.endswith('.rs'): continue
      q=os.path.join(p,f); rel=os.path.relpath(q,d)
      if '/sim/' in rel or rel.endswith('/sim.rs'): continue
      if f in('tests.rs',) or '/tests/' in rel or f.endswith('_tests.rs') or f in ('fake.rs','randomised.rs','generated.rs','samples.rs','random_values.rs'): continue
      l=strip(open(q).read())
      n=len(l)-1
      tot+=n
      room=rel.split('/')[1 if rel.startswith('src') else 3].replace('.rs','')
      rooms[room]=rooms.get(room,0)+n
      types+=len([x for x in l if re.match(r'\s*(pub(\(.*?\))? )?(struct|enum|trait|type) ',x)])
      if n>400: big.append((n,rel))
print('lines',tot,'types',types); print(sorted(rooms.items(),key=lambda x:-x[1])); print('over 400:',big)
