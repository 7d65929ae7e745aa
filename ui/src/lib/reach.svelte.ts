// "Where is softmax?" leads to one section of a view: the option `part` names it, and is spent when it is reached.

import { setOption, state } from './state.svelte'

/** Scrolls to the element `VIEW-PART` once it is there and no longer moves; call while a view is being set up. */
export function reachPart(view: string) {
  $effect(() => {
    const part = state.options.part
    if (!part) return
    let [tries, last] = [0, NaN]
    const timer = setInterval(() => {
      const there = document.getElementById(`${view}-${part}`)
      there?.scrollIntoView({ block: 'start' })
      const top = there?.offsetTop ?? NaN
      if (top !== last && ++tries < 25) return void (last = top)
      clearInterval(timer)
      setOption('part', null)
    }, 200)
    return () => clearInterval(timer)
  })
}
