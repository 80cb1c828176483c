#include "dtrain/data/tokenizer/hugging_face/unicode_library.h"

#include "dtrain/base/error.h"
#include "dtrain/base/host/plugin_file.h"

namespace dtrain::data {

const UnicodeLibrary& unicode_library() {
  using Entry = const UnicodeLibrary& (*)();
  static const base::PluginFile file =
      base::open_isolated("libdtrain-unicode.so", "dtrain_unicode_library");
  if (file.entry == nullptr) {
    base::fail(base::ErrorKind::usage,
               "cannot load PCRE2 and ICU through {}: {}; install Debian's libpcre2-dev and "
               "libicu-dev (scripts/setup.sh) and build again",
               file.path, file.obstacle);
  }
  return reinterpret_cast<Entry>(file.entry)();
}

}  // namespace dtrain::data
