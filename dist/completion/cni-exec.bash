# Completion of cni-exec for bash: the program knows its verbs, flags, networks and IDs.
_cni_exec() {
	local cur=${COMP_WORDS[COMP_CWORD]} line=${COMP_LINE:0:COMP_POINT} words found word last head i
	read -ra words <<<"$line"
	[[ $line == *[[:space:]] ]] && words+=("")
	last=${words[${#words[@]} - 1]}
	# bash splits words at = and : and replaces the part that it takes for the current one.
	[[ $cur == [=:] ]] && cur=
	head=${last%"$cur"}
	[[ $head == "$last" && -n $cur ]] && head=
	COMPREPLY=()
	while IFS=$'\t' read -r word _; do
		case $word in
		:file | :dir)
			compopt -o filenames 2>/dev/null
			[[ $word == :dir ]] && found=-d || found=-f
			while IFS= read -r word; do
				COMPREPLY+=("$word")
			done < <(compgen "$found" -- "${last#"$head"}")
			;;
		:command)
			for ((i = 1; i < COMP_CWORD; i++)); do
				[[ ${COMP_WORDS[i]} == -- ]] && break
			done
			if declare -F _command_offset >/dev/null; then
				_command_offset $((i + 1))
			elif ((COMP_CWORD == i + 1)); then
				while IFS= read -r word; do
					COMPREPLY+=("$word")
				done < <(compgen -c -- "$cur")
			else
				compopt -o default
			fi
			return
			;;
		*) COMPREPLY+=("${word#"$head"}") ;;
		esac
	done < <("$1" complete "${words[@]:1}" 2>/dev/null)
}
complete -F _cni_exec cni-exec
