// The lesson as it was recorded so far. It outlives the view, so that one can look elsewhere and come back.

import { training } from '../../lib/api'
import type { TrainingEvent } from '../../lib/types'

class Lesson {
  events = $state.raw<TrainingEvent[]>([])
  running = $state(false)
  failed = $state(false)
}

export const lesson = new Lesson()

let halt = () => {}

export function start() {
  halt()
  lesson.events = []
  lesson.running = true
  lesson.failed = false
  halt = training(
    (event) => {
      lesson.events = [...lesson.events, event]
    },
    () => {
      lesson.running = false
      lesson.failed = true
    },
    () => {
      lesson.running = false
    },
  )
}

/** What was recorded stays; the server is free for another page. */
export function stop() {
  halt()
  halt = () => {}
  lesson.running = false
}
