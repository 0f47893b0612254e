# Completion of numacast for fish: numacast completion fish | source

function __numacast_complete
    set -l words (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token --cut-at-cursor)
    numacast __complete $words[2..] 2>/dev/null | string match --invert --regex '^:'
end

complete --command numacast --no-files --keep-order --arguments '(__numacast_complete)'
