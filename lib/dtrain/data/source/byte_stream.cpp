#include "dtrain/data/source/byte_stream.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

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

using base::ErrorKind;
using base::fail;

constexpr std::size_t kBufferBytes = 256 * 1024;
constexpr std::size_t kMostWindow = std::size_t{1} << 27;  // ZSTD_createDStream's own

/// What both formats share: compressed bytes come in buffers, text goes where the caller wants it.
class Decompressing : public ByteStream {
 public:
  Decompressing(std::unique_ptr<ByteStream> from, std::string path, std::string_view format)
      : from_(std::move(from)), path_(std::move(path)), format_(format), buffer_(kBufferBytes) {}

  std::size_t read(std::span<char> to) final {
    std::size_t filled = 0;
    while (filled < to.size() && fill()) {
      const std::size_t count = decompress(to.subspan(filled));
      filled += count;
      text_bytes_ += static_cast<std::int64_t>(count);
    }
    return filled;
  }
  [[nodiscard]] std::int64_t consumed() const noexcept final { return from_->consumed(); }

 protected:
  /// Takes some of the compressed bytes and returns how many bytes of text it wrote.
  [[nodiscard]] virtual std::size_t decompress(std::span<char> to) = 0;
  /// Whether the bytes taken so far end a member or frame.
  [[nodiscard]] virtual bool is_complete() const = 0;

  [[nodiscard]] std::span<char> compressed() {
    return std::span(buffer_).first(available_).subspan(taken_);
  }
  void take(std::size_t count) { taken_ += count; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[noreturn]] void refuse_damaged(std::string_view reason) const {
    fail(ErrorKind::data,
         "data file '{}' is damaged: its {} data is wrong near byte {} ({}); fetch or compress it "
         "again",
         path_, format_, from_->consumed() - std::int64_t(available_ - taken_), reason);
  }

 private:
  /// Returns whether there is something to decompress.
  bool fill() {
    if (taken_ < available_ || has_more_text()) return true;
    available_ = from_->read(buffer_);
    taken_ = 0;
    if (available_ > 0) return true;
    if (is_complete()) return false;
    fail(ErrorKind::data,
         "data file '{}' is truncated: its {} data ends at byte {} in the middle of the text, "
         "after {} bytes of it; fetch or compress it again",
         path_, format_, from_->consumed(), text_bytes_);
  }
  /// Whether text may come without further compressed bytes.
  [[nodiscard]] virtual bool has_more_text() const = 0;

  std::unique_ptr<ByteStream> from_;
  std::string path_;
  std::string_view format_;
  std::vector<char> buffer_;
  std::size_t available_ = 0;  // bytes in buffer_
  std::size_t taken_ = 0;      // of them
  std::int64_t text_bytes_ = 0;
};

class GzipStream final : public Decompressing {
 public:
  GzipStream(std::unique_ptr<ByteStream> from, std::string path)
      : Decompressing(std::move(from), std::move(path), "gzip") {
    constexpr int kGzipOfAnyWindow = 15 + 16;
    if (::inflateInit2(&state_, kGzipOfAnyWindow) != Z_OK) throw std::bad_alloc();
  }
  ~GzipStream() override { ::inflateEnd(&state_); }

 private:
  std::size_t decompress(std::span<char> to) override {
    if (is_complete_) ::inflateReset(&state_);
    is_complete_ = false;
    const std::span<char> in = compressed();
    state_.next_in = reinterpret_cast<Bytef*>(in.data());
    state_.avail_in = static_cast<uInt>(in.size());
    state_.next_out = reinterpret_cast<Bytef*>(to.data());
    const auto room = static_cast<uInt>(std::min(to.size(), std::size_t{1} << 30));
    state_.avail_out = room;
    const int status = ::inflate(&state_, Z_NO_FLUSH);
    take(in.size() - state_.avail_in);
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
      refuse_damaged(state_.msg != nullptr ? state_.msg : "it does not decompress");
    }
    is_complete_ = status == Z_STREAM_END;
    is_full_ = state_.avail_out == 0 && !is_complete_;
    return room - state_.avail_out;
  }
  [[nodiscard]] bool is_complete() const override { return is_complete_; }
  [[nodiscard]] bool has_more_text() const override { return is_full_; }

  z_stream state_{};
  bool is_complete_ = false;
  bool is_full_ = false;
};

class ZstdStream final : public Decompressing {
 public:
  ZstdStream(std::unique_ptr<ByteStream> from, std::string path)
      : Decompressing(std::move(from), std::move(path), "zstd"), state_(::ZSTD_createDStream()) {
    if (state_ == nullptr) throw std::bad_alloc();
  }

 private:
  struct Deleter {
    void operator()(ZSTD_DStream* state) const { ::ZSTD_freeDStream(state); }
  };

  std::size_t decompress(std::span<char> to) override {
    const std::span<char> bytes = compressed();
    ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
    ZSTD_outBuffer out{to.data(), to.size(), 0};
    const std::size_t status = ::ZSTD_decompressStream(state_.get(), &out, &in);
    if (::ZSTD_isError(status) != 0) refuse(status);
    take(in.pos);
    is_complete_ = status == 0;
    is_full_ = out.pos == out.size && !is_complete_;
    return out.pos;
  }
  [[noreturn]] void refuse(std::size_t status) const {
    if (::ZSTD_getErrorCode(status) != ZSTD_error_frameParameter_windowTooLarge) {
      refuse_damaged(::ZSTD_getErrorName(status));
    }
    fail(ErrorKind::data,
         "data file '{}' was compressed with a window of more than {} MiB (zstd --long=28 or "
         "above); decompress it: zstd -d --long=31",
         path(), kMostWindow >> 20);
  }
  [[nodiscard]] bool is_complete() const override { return is_complete_; }
  [[nodiscard]] bool has_more_text() const override { return is_full_; }

  std::unique_ptr<ZSTD_DStream, Deleter> state_;
  bool is_complete_ = false;
  bool is_full_ = false;
};

// The text of gzip data, of one member after another. path: for messages.
std::unique_ptr<ByteStream> gunzip(std::unique_ptr<ByteStream> from, std::string path) {
  return std::make_unique<GzipStream>(std::move(from), std::move(path));
}

// The text of zstd data, of one frame after another.
std::unique_ptr<ByteStream> unzstd(std::unique_ptr<ByteStream> from, std::string path) {
  return std::make_unique<ZstdStream>(std::move(from), std::move(path));
}

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

bool is_gzip(std::string_view start) { return start.starts_with("\x1f\x8b"); }

bool is_zstd(std::string_view start) {
  constexpr std::uint32_t kFirstToSkip = 0x184D2A50;  // of 16 numbers
  std::uint32_t magic = 0;
  if (start.size() < sizeof(magic)) return false;
  std::memcpy(&magic, start.data(), sizeof(magic));
  return magic == ZSTD_MAGICNUMBER || (magic & ~std::uint32_t{0xF}) == kFirstToSkip;
}

}  // namespace dtrain::data
