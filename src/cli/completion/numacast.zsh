#compdef numacast
# Completion of numacast for Zsh: source <(numacast completion zsh)

_numacast() {
    local candidate value
    local -a candidates space
    for candidate in "${(@f)$(numacast __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
        case $candidate in
        :6) space=(-S '') ;;
        :*|'') ;;
        *)
            value=${candidate%%$'\t'*}
            candidates+=("${value//:/\\:}${${candidate#"$value"}/$'\t'/:}")
            ;;
        esac
    done
    _describe -V numacast candidates $space
}

compdef _numacast numacast
