// Text as a manifest: what is taken can be written and read again, everything else is refused.
#include <cstddef>
#include <cstdint>
#include <string>

#include "dtrain/base/checksum.h"
#include "dtrain/checkpoint/format/manifest.h"
#include "fuzz/outcome.h"

namespace {

namespace base = dtrain::base;
namespace format = dtrain::checkpoint::format;

const std::string kPath = "run/step-1/manifest.json";

void parse(std::string_view text) {
  dtrain::fuzz::parse_or_refuse(kPath, [&] {
    const format::Manifest manifest = format::parse_manifest(text, kPath);
    const format::Manifest again = format::parse_manifest(format::to_text(manifest), kPath);
    dtrain::fuzz::require(again == manifest, "a manifest is read back as it was written");
    for (const format::FileInfo& file : manifest.contents.files) {
      dtrain::fuzz::require(file.name.find('/') == std::string::npos, "names stay in the folder");
      for (const format::PieceInfo& piece : file.pieces) {
        dtrain::fuzz::require(
            format::fits(piece.box, manifest.contents.tensors.at(piece.tensor).shape),
            "pieces lie within their tensors");
      }
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  parse(text);
  // A checksum that is right, which no chance would find.
  parse(R"({"xxh3": ")" + base::checksum_text(base::checksum_of(text)) + "\"," + text);
  return 0;
}
