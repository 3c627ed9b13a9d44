# Completion of cni-exec for fish: the program knows its verbs, flags, networks and IDs.
function __cni_exec_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program $words[1]
    set -e words[1]
    for line in ($program complete $words "$current" 2>/dev/null)
        switch $line
            case ':file' ':dir'
                set -l flag (string match -r -- '^--[^=]*=' $current)
                set -l rest (string replace -r -- '^--[^=]*=' '' $current)
                if test $line = ':dir'
                    printf '%s\n' "$flag"(__fish_complete_directories "$rest" '')
                else
                    printf '%s\n' "$flag"(__fish_complete_path "$rest")
                end
            case ':command'
                set -l i (contains -i -- -- $words)
                set -e words[1..$i]
                complete -C "$(string join ' ' -- (string escape -- $words) "$current")"
            case '*'
                echo $line
        end
    end
end
complete -c cni-exec -f -a '(__cni_exec_complete)'
