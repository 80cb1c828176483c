// Text as a tokenizer.json: what is taken encodes every byte without an error, everything else is
// refused.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/data/tokenizer/hugging_face/byte_pairs.h"
#include "dtrain/data/tokenizer/hugging_face/tokenizer_json.h"
#include "fuzz/outcome.h"

namespace {

namespace data = dtrain::data;

const std::string kPath = "model/tokenizer.json";

void parse(std::string_view text) {
  dtrain::fuzz::parse_or_refuse(
      kPath,
      [&] {
        const data::TokenizerJson json = data::parse_tokenizer_json(text, kPath);
        dtrain::fuzz::require(json.steps_before_bytes <= json.steps.size(),
                              "the steps are counted");
        std::string word;
        for (int byte = 0; byte < 256; ++byte) word += static_cast<char>(byte);
        data::BytePairBuffers buffers;
        std::vector<std::uint32_t> tokens;
        data::BytePairs(json.model).encode(word + word, buffers, tokens);
        dtrain::fuzz::require(tokens.size() <= 2 * word.size(), "a byte has at most one token");
      },
      dtrain::base::ErrorKind::data);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  parse(text);
  // A pre-tokenizer, which the rest of a whole file would need.
  constexpr const char* kModel =
      R"({"model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}, "decoder": {"type":
      "ByteLevel"}, "pre_tokenizer": )";
  parse(kModel + text + "}");
  return 0;
}
