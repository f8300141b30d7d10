function __antiphon_words
    set -l typed (commandline -opc) (commandline -ct)
    antiphon completion words -- $typed[2..-1] 2>/dev/null
end
complete -c antiphon -a '(__antiphon_words)'
