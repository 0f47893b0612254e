# Completion of numacast for Bash: source <(numacast completion bash)

_numacast() {
    local line=${COMP_LINE:0:COMP_POINT} words=() candidate current kept
    read -ra words <<<"$line"
    [[ $line != *[[:space:]] ]] || words+=("")
    current=${words[${#words[@]} - 1]}
    # Bash replaces only what follows the last of these characters.
    kept=${current%"${current##*[:=]}"}
    COMPREPLY=()
    while IFS= read -r candidate; do
        case $candidate in
        :6) compopt -o nospace ;;
        :*) ;;
        *)
            candidate=${candidate%%$'\t'*}
            COMPREPLY+=("${candidate#"$kept"}")
            ;;
        esac
    done < <(numacast __complete "${words[@]:1}" 2>/dev/null)
}

complete -o nosort -F _numacast numacast
