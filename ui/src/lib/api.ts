// All that the page asks of the server. A saved page carries the answers in `window.__GLASSFORMER__`, and then nothing is fetched.

import { slice, type Tensor } from './tensor'
import type { Architecture, Lens, ModelCard, Problem, Run, RunRequest, Segmentation, TensorInfo, TrainingEvent, Vocabulary, Worked } from './types'

/** Keyed by `key(method, path, body)`. Float32 answers stand as base64, little-endian, with their shape. */
export interface Saved {
  responses: Record<string, { json?: unknown; base64?: string; shape?: number[]; status?: number }>
}

declare global {
  interface Window {
    __GLASSFORMER__?: Saved
  }
}

/** What the server said, in one line. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message)
  }
}

/** No answer, or one about a run that the server holds no more: both are mended by asking again. */
export const lost = (error: unknown): boolean => error instanceof Refusal && (error.status === 0 || error.status === GONE)

/** Of a run that was let go; the server itself says 404, as of any name that it does not know. */
const GONE = 410

const saved = (): Saved | undefined => (typeof window === 'undefined' ? undefined : window.__GLASSFORMER__)

/** True for a page written by `--html`: it can show what it holds, but compute nothing new. */
export const isSaved = () => saved() !== undefined

/** "GET /api/models" or "POST /api/runs {…}", the body with its keys in order and without what is undefined. */
export const key = (method: string, path: string, body?: object) => `${method} ${path}${body ? ' ' + canonical(body) : ''}`

export function canonical(body: object): string {
  const entries = Object.entries(body).filter(([, value]) => value !== undefined)
  return JSON.stringify(Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1))))
}

// Beside the page, so that it works at / and under /explore/ alike.
const address = (path: string) => new URL(path.slice(1), document.baseURI.replace(/[?#].*/s, ''))

async function ask(method: string, path: string, body?: object, signal?: AbortSignal): Promise<{ json?: any; data?: Float32Array; shape?: number[] }> {
  const held = saved()
  if (held) {
    const answer = held.responses[key(method, path, body)]
    if (!answer) throw new Refusal(404, 'not in this saved page')
    if (answer.status && answer.status >= 400) throw new Refusal(answer.status, (answer.json as Problem).error)
    return answer.base64 === undefined ? { json: answer.json } : { data: floats(answer.base64), shape: answer.shape }
  }
  let response: Response
  try {
    response = await fetch(address(path), {
      method,
      signal,
      ...(body && { body: canonical(body), headers: { 'content-type': 'application/json' } }),
    })
  } catch (error) {
    if ((error as Error).name === 'AbortError') throw error
    throw new Refusal(0, 'the server does not answer; is glassformer explore still running?')
  }
  if (!response.ok) {
    const problem = (await response.json().catch(() => null)) as Problem | null
    const gone = response.status === 404 && /^no run /.test(problem?.error ?? '')
    throw new Refusal(gone ? GONE : response.status, problem?.error ?? `${response.status} ${response.statusText}`)
  }
  if (response.headers.get('content-type')?.includes('json')) return { json: await response.json() }
  const shape = (response.headers.get('x-shape') ?? '').split(/[ ,×x]+/).filter(Boolean).map(Number)
  return { data: new Float32Array(await response.arrayBuffer()), shape }
}

function floats(base64: string): Float32Array {
  const text = atob(base64)
  const bytes = new Uint8Array(text.length)
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i)
  return new Float32Array(bytes.buffer)
}

/** Answers are kept, least recently used last out; a failure is not kept. */
class Cache {
  private held = new Map<string, Promise<any>>()
  constructor(private readonly most: number) {}

  get<T>(name: string, make: () => Promise<T>): Promise<T> {
    const found = this.held.get(name) ?? make()
    this.held.delete(name)
    this.held.set(name, found)
    found.catch(() => this.held.get(name) === found && this.held.delete(name))
    if (this.held.size > this.most) this.held.delete(this.held.keys().next().value!)
    return found
  }

  peek = (name: string) => this.held.get(name)
}

const cache = new Cache(400)
const get = <T>(path: string) => cache.get<T>(path, async () => (await ask('GET', path)).json as T)

export const models = async () => (await ask('GET', '/api/models')).json as ModelCard[]
export const architecture = (model: string) => get<Architecture>(`/api/models/${encodeURIComponent(model)}`)
export const lens = (run: Run, stack: string) => get<Lens>(`/api/runs/${run.id}/lens?stack=${stack}`)
export const vocabulary = (model: string) => get<Vocabulary>(`/api/models/${encodeURIComponent(model)}/vocabulary`)
export const worked = () => get<Worked[]>('/api/worked')
export const segment = (model: string, side: 'source' | 'target', text: string) =>
  get<Segmentation>(`/api/segment?model=${encodeURIComponent(model)}&side=${side}&text=${encodeURIComponent(text)}`)

let latest: AbortController | undefined

/** Runs a text through a model. A newer call in the same place cancels the older, which then rejects with AbortError. */
export async function run(request: RunRequest, place?: 'aside'): Promise<Run> {
  const controller = new AbortController()
  if (!place) {
    latest?.abort()
    latest = controller
  }
  return (await ask('POST', '/api/runs', request, controller.signal)).json as Run
}

const letters = (axes: string) => axes.replaceAll(' ', '').replace(/^B/, '')

/** Numbers of a run: `tensor(run, 'encoder.layers.0.mixer.pattern', { h: 3 })` has axes "TS". */
export function tensor(run: Run, name: string, fix: Record<string, number> = {}): Promise<Tensor> {
  const info = run.tensors.find((each) => each.name === name)
  if (!info) return Promise.reject(new Refusal(404, `no tensor ${name} in this run`))
  const whole = `/api/runs/${run.id}/tensors/${encodeURIComponent(name)}`
  const path = whole + query(fix)
  // A saved page holds whole tensors, and one fetched whole need not be fetched again by parts.
  if (path !== whole && (isSaved() || cache.peek(whole))) return tensor(run, name).then((found) => slice(found, fix))
  return cache.get(path, async () => remaining(info, fix, await ask('GET', path)))
}

function remaining(info: TensorInfo, fix: Record<string, number>, answer: { data?: Float32Array; shape?: number[] }): Tensor {
  const fixed = Object.keys(fix).map((axis) => axis.toUpperCase())
  const axes = [...letters(info.axes)].filter((axis) => !fixed.includes(axis.toUpperCase())).join('')
  const data = answer.data ?? new Float32Array()
  return { name: info.name, axes, shape: answer.shape?.length ? answer.shape : [data.length], data }
}

const query = (fix: Record<string, number>) => {
  const parts = Object.entries(fix).sort(([a], [b]) => (a < b ? -1 : 1))
  return parts.length ? '?' + parts.map(([axis, index]) => `${axis}=${index}`).join('&') : ''
}

/** A learnt tensor, or one row of it. */
export function weight(model: string, name: string, row?: number): Promise<Tensor> {
  const whole = `/api/models/${encodeURIComponent(model)}/weights/${encodeURIComponent(name)}`
  const path = whole + (row === undefined ? '' : `?row=${row}`)
  // A saved page holds small ones whole.
  if (row !== undefined && saved()?.responses[key('GET', whole)]) return weight(model, name).then((found) => slice(found, { r: row }))
  return cache.get(path, async () => {
    const { data = new Float32Array(), shape = [data.length] } = await ask('GET', path)
    return { name, axes: shape.length === 2 ? 'RC' : 'C', shape, data }
  })
}

/** The training that runs while one looks; returns what stops it. A saved page tells it all at once. */
export function training(each: (event: TrainingEvent) => void, failed: (line: string) => void, done: () => void = () => {}): () => void {
  if (isSaved()) {
    ask('GET', '/api/training').then(({ json }) => ((json as TrainingEvent[]).forEach(each), done()), (error) => failed(error.message))
    return () => {}
  }
  const source = new EventSource(address('/api/training'))
  source.onmessage = ({ data }) => {
    const event = JSON.parse(data) as TrainingEvent
    each(event)
    if (event.step >= event.steps) (source.close(), done())
  }
  source.onerror = () => (source.close(), failed('the training stopped'))
  return () => source.close()
}
