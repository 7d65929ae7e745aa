/// <reference types="vitest/config" />
import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig, type Plugin } from 'vite'

/** In mode "single": one page.html with everything inside, for `glassformer explore --html FILE`. */
function inline(): Plugin {
  return {
    name: 'inline',
    enforce: 'post',
    generateBundle: {
      order: 'post',
      handler(_, bundle) {
        const page = bundle['index.html']
        if (page?.type !== 'asset') return
        let html = String(page.source)
        for (const [name, file] of Object.entries(bundle)) {
          if (file.type === 'chunk') {
            const code = file.code.replaceAll('</script', '<\\/script').replaceAll('<!--', '<\\!--')
            html = html.replace(/<script type="module"[^>]*><\/script>/, () => `<script type="module">${code}</script>`)
          } else if (name.endsWith('.css')) {
            html = html.replace(/<link rel="stylesheet"[^>]*>/, () => `<style>${file.source}</style>`)
          } else continue
          delete bundle[name]
        }
        delete bundle['index.html']
        this.emitFile({ type: 'asset', fileName: 'page.html', source: html })
      },
    },
  }
}

export default defineConfig(({ mode }) => {
  const single = mode === 'single'
  return {
    base: './',
    plugins: [svelte(), single && inline()],
    build: {
      outDir: '../src/glassformer/explore/static',
      emptyOutDir: !single,
      target: 'es2022',
      sourcemap: false,
      modulePreload: { polyfill: false },
      cssCodeSplit: !single,
      rolldownOptions: single ? { output: { codeSplitting: false } } : {},
    },
    server: { proxy: { '/api': 'http://127.0.0.1:8765' } },
    test: { include: ['src/**/*.test.ts'], environment: 'node' },
  }
})
