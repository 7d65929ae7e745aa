// Data that depends on the state: `const pattern = load(() => session.run && tensor(session.run, name, { h: state.head }))`.

import { lost, type Refusal } from './api'
import { mislaid, session } from './run.svelte'

/**
 * Follows what `ask` reads. While the new is on its way, `value` keeps the old and `busy` is true, so that nothing flickers. Where the
 * server is gone, or has forgotten the run, the page says so once, above; the old stays, and all is asked for again when it is back.
 */
export function load<T>(ask: () => Promise<T> | null | undefined | false | '') {
  let now = $state.raw<{ value: T | null; error: string; busy: boolean }>({ value: null, error: '', busy: false })
  $effect(() => {
    let stale = false
    session.attempt
    const asked = ask()
    if (!asked) return void (now = { value: null, error: '', busy: false })
    queueMicrotask(() => !stale && !settled && (now = { ...now, busy: true }))
    let settled = false
    asked.then(
      (value) => ((settled = true), stale || (now = { value, error: '', busy: false })),
      (error: Refusal) => {
        settled = true
        if (stale || error.name === 'AbortError') return
        if (lost(error)) mislaid(error)
        now = lost(error) ? { ...now, busy: false } : { value: null, error: error.message, busy: false }
      },
    )
    return () => (stale = true)
  })
  return {
    get value() {
      return now.value
    },
    get error() {
      return now.error
    },
    get busy() {
      return now.busy
    },
  }
}
