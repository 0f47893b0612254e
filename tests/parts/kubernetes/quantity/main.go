// Command quantity parses quantities with Kubernetes' own type.
//
//	quantity tables DIR         of every text in the tables of the tests in DIR, with either sign and without
//	quantity random SEED COUNT  of generated texts
//
// A line is the text, Value(), MilliValue() and Sign() with tabs between, or the text alone if it is no quantity.
package main

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"math"
	"math/big"
	"math/rand"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

func main() {
	log.SetFlags(0)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	switch {
	case len(os.Args) == 3 && os.Args[1] == "tables":
		tables(out, os.Args[2])
	case len(os.Args) == 4 && os.Args[1] == "random":
		random(out, rand.New(rand.NewSource(number(os.Args[2]))), number(os.Args[3]))
	default:
		log.Fatal("quantity tables DIR | random SEED COUNT")
	}
}

func number(text string) int64 {
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func say(out *bufio.Writer, text string) {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		fmt.Fprintln(out, text)
		return
	}
	fmt.Fprintf(out, "%s\t%d\t%d\t%d\n", text, q.Value(), q.MilliValue(), q.Sign())
}

// tables finds the texts in upstream's own tests: those in composite literals, and those that are parsed at once.
func tables(out *bufio.Writer, dir string) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		log.Fatalf("no tests in %s: %v", dir, err)
	}
	seen := map[string]bool{}
	add := func(node ast.Node) bool {
		literal, ok := node.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		text, err := strconv.Unquote(literal.Value)
		if err != nil {
			log.Fatal(err)
		}
		// Names of cases are sentences.
		if text == "" || strings.ContainsAny(text, "\t\n#") || strings.Count(text, " ") > 1 || seen[text] {
			return true
		}
		seen[text] = true
		for _, sign := range []string{"", "-", "+"} {
			say(out, sign+text)
		}
		return true
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			log.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			switch node := node.(type) {
			case *ast.CompositeLit:
				ast.Inspect(node, add)
			case *ast.CallExpr:
				if called, ok := node.Fun.(*ast.Ident); ok && strings.HasSuffix(called.Name, "Parse") {
					ast.Inspect(node, add)
				}
			}
			return true
		})
	}
}

func random(out *bufio.Writer, r *rand.Rand, count int64) {
	for written := int64(0); written < count; {
		if text := made(r); text != "" {
			say(out, text)
			written++
		}
	}
}

func made(r *rand.Rand) string {
	switch r.Intn(6) {
	case 0, 1:
		return canonical(r)
	case 2:
		return spelled(r)
	case 3:
		return atLimit(r)
	case 4:
		return changed(r)
	default:
		return farOut(r)
	}
}

// canonical is as Go writes a quantity of any size and form.
func canonical(r *rand.Rand) string {
	value := r.Int63() >> r.Intn(64)
	if r.Intn(4) == 0 {
		value = -value
	}
	formats := []resource.Format{resource.DecimalSI, resource.BinarySI, resource.DecimalExponent}
	format := formats[r.Intn(len(formats))]
	var q *resource.Quantity
	switch r.Intn(3) {
	case 0:
		q = resource.NewScaledQuantity(value, resource.Scale(r.Intn(28)-9))
		q.Format = format
	case 1:
		q = resource.NewMilliQuantity(value, format)
	default:
		q = resource.NewQuantity((value>>40)<<(10*r.Intn(5)), format)
	}
	return q.String()
}

var suffixes = []string{
	"", "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
}

func suffix(r *rand.Rand) string {
	if r.Intn(3) > 0 {
		return suffixes[r.Intn(len(suffixes))]
	}
	signs := []string{"", "+", "-", "-"}
	return string("eE"[r.Intn(2)]) + signs[r.Intn(4)] + strconv.Itoa(r.Intn(40)>>r.Intn(6))
}

func sign(r *rand.Rand) string {
	return []string{"", "", "", "-", "+"}[r.Intn(5)]
}

func digits(r *rand.Rand, most int) string {
	text := make([]byte, r.Intn(most+1))
	zeros := r.Intn(3) == 0
	for i := range text {
		text[i] = '0' + byte(r.Intn(10))
		if zeros && r.Intn(3) > 0 {
			text[i] = '0'
		}
	}
	return string(text)
}

// spelled is any number that the grammar has.
func spelled(r *rand.Rand) string {
	text := sign(r) + digits(r, 24)
	if r.Intn(2) == 0 {
		text += "." + digits(r, 24)
	}
	return text + suffix(r)
}

// atLimit is close to a number at which Go calculates in another way.
func atLimit(r *rand.Rand) string {
	limits := []*big.Int{
		big.NewInt(math.MaxInt64), big.NewInt(math.MaxInt64 / 1000), big.NewInt(1e18), big.NewInt(1e15), big.NewInt(1024),
		big.NewInt(1000), new(big.Int).Lsh(big.NewInt(1), 64),
	}
	value := new(big.Int).Set(limits[r.Intn(len(limits))])
	value.Rsh(value, uint(10*r.Intn(7)))
	value.Add(value, big.NewInt(int64(r.Intn(7)-3)))
	text := sign(r) + strings.TrimPrefix(value.String(), "-")
	if r.Intn(3) == 0 {
		text += "." + digits(r, 12)
	}
	return text + suffix(r)
}

// endless is an exponent with which Go may write out a number of that many digits.
var endless = regexp.MustCompile(`[eE][+-]?\d{5,}$`)

// changed has one character changed, dropped or added.
func changed(r *rand.Rand) string {
	for {
		if text := change(r); !endless.MatchString(text) {
			return text
		}
	}
}

func change(r *rand.Rand) string {
	kinds := []func(*rand.Rand) string{canonical, spelled, atLimit}
	text := []byte(kinds[r.Intn(len(kinds))](r))
	const letters = "0123456789+-.eEinumkKMGTP x_,"
	letter, at := letters[r.Intn(len(letters))], r.Intn(len(text)+1)
	switch {
	case r.Intn(2) == 0 || at == len(text):
		return string(text[:at]) + string(letter) + string(text[at:])
	case r.Intn(2) == 0:
		return string(text[:at]) + string(text[at+1:])
	default:
		text[at] = letter
		return string(text)
	}
}

// farOut has an extreme exponent. Go takes very long for those of many digits that are not whole.
func farOut(r *rand.Rand) string {
	exponents := []string{"2147483647", "2147483646", "2147483640", "4294967296", "4294967299", "9223372036854775807",
		"9223372036854775808", "-9223372036854775808", "-4294967296", "000000000000000000000000003"}
	mantissa := strconv.Itoa(1 + r.Intn(99999)>>r.Intn(16))
	if r.Intn(4) == 0 {
		return sign(r) + mantissa + "e" + exponents[r.Intn(len(exponents))]
	}
	if r.Intn(2) == 0 {
		mantissa += "." + digits(r, 30)
	}
	return sign(r) + mantissa + "e" + []string{"", "-"}[r.Intn(2)] + strconv.Itoa(r.Intn(10000)>>r.Intn(12))
}
