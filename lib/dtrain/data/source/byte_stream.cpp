#include "dtrain/data/source/byte_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "dtrain/data/source/compressed.h"

namespace dtrain::data {
namespace {

/// A file as it is.
class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(base::InputFile file) : file_(std::move(file)) {}

  std::size_t read(std::span<char> to) override {
    const auto left = static_cast<std::size_t>(file_.size() - offset_);
    to = to.first(std::min(left, to.size()));
    if (!to.empty()) file_.read(offset_, std::as_writable_bytes(to));
    offset_ += std::ssize(to);
    return to.size();
  }
  [[nodiscard]] std::int64_t consumed() const noexcept override { return offset_; }

 private:
  base::InputFile file_;
  std::int64_t offset_ = 0;
};

}  // namespace

const base::FileRole& text_file_role() {
  static constexpr base::FileRole kRole{base::ErrorKind::data, "data file",
                                        "give a plain text, or a folder of them"};
  return kRole;
}

std::unique_ptr<ByteStream> open_bytes(const std::string& path) {
  base::InputFile file = base::InputFile::open(path, text_file_role());
  char start[4] = {};
  const std::span found(start, static_cast<std::size_t>(std::min<std::int64_t>(4, file.size())));
  file.read(0, std::as_writable_bytes(found));
  const std::string_view magic(found.data(), found.size());
  auto plain = std::make_unique<PlainStream>(std::move(file));
  if (is_gzip(magic)) return gunzip(std::move(plain), path);
  if (is_zstd(magic)) return unzstd(std::move(plain), path);
  return plain;
}

}  // namespace dtrain::data
