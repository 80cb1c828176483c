#include "dtrain/data/tokenizer/piece_library.h"

#include "dtrain/base/error.h"
#include "dtrain/base/plugin_file.h"

namespace dtrain::data {

PieceLibrary& piece_library() {
  using Entry = PieceLibrary& (*)();
  static const base::PluginFile file =
      base::open_apart("libdtrain-sentencepiece.so", "dtrain_piece_library");
  if (file.entry == nullptr) {
    base::fail(base::ErrorKind::usage,
               "cannot load SentencePiece through {}: {}; install Debian's libsentencepiece-dev "
               "(scripts/setup.sh) and build again",
               file.path, file.obstacle);
  }
  return reinterpret_cast<Entry>(file.entry)();
}

}  // namespace dtrain::data
