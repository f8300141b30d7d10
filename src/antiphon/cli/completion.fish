function __antiphon_words
    set -l typed (commandline -opc) (commandline -ct)
    set -l found (antiphon completion words -- $typed[2..-1] 2>/dev/null)
    if test -n "$found[1]"
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c antiphon -f -a '(__antiphon_words)'
