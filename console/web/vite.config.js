// Fixed names and no hashes: the server tells browsers by ETag when a file has changed, and a fresh build can be compared.
export default {
  base: "/console/",
  build: {
    outDir: "../assets",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    rolldownOptions: {
      output: { entryFileNames: "app.js", assetFileNames: "app.[ext]", codeSplitting: false },
    },
  },
};
