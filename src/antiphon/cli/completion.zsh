#compdef antiphon
_antiphon() {
    local -a found
    found=("${(@f)$(antiphon completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -a found; else _files; fi
}
compdef _antiphon antiphon
