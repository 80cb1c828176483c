#include "dtrain/data/source/byte_stream.h"

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/io/blocking_read.h"

namespace dtrain::data {
namespace {

using base::ErrorKind;
using base::fail;

/// An uncompressed file.
class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(const std::string& path) : file_(base::InputFile::open(path, kTextFile)) {}

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

/// Uncompressed standard input.
class StandardInput final : public ByteStream {
 public:
  explicit StandardInput(std::function<void()> on_wait) : on_wait_(std::move(on_wait)) {}

  std::size_t read(std::span<char> to) override {
    std::size_t filled = 0;
    while (filled < to.size()) {
      const ssize_t count = base::blocking_read(STDIN_FILENO, to.subspan(filled), on_wait_);
      if (count < 0) {
        fail(ErrorKind::data, "standard input cannot be read after {} bytes ({}); name a file",
             offset_, std::strerror(errno));
      }
      if (count == 0) break;
      filled += static_cast<std::size_t>(count);
      offset_ += count;
    }
    return filled;
  }
  [[nodiscard]] std::int64_t consumed() const noexcept override { return offset_; }

 private:
  std::function<void()> on_wait_;
  std::int64_t offset_ = 0;
};

/// A stream whose first bytes have been read.
class Unread final : public ByteStream {
 public:
  Unread(std::string start, std::unique_ptr<ByteStream> rest)
      : start_(std::move(start)), rest_(std::move(rest)) {}

  std::size_t read(std::span<char> to) override {
    const std::size_t count = start_.copy(to.data(), to.size());
    start_.erase(0, count);
    return count + rest_->read(to.subspan(count));
  }
  [[nodiscard]] std::int64_t consumed() const noexcept override {
    return rest_->consumed() - std::ssize(start_);
  }

 private:
  std::string start_;
  std::unique_ptr<ByteStream> rest_;
};

constexpr std::size_t kBufferBytes = 256 * 1024;
constexpr std::size_t kMostWindow = std::size_t{1} << 27;  // ZSTD_createDStream's default

/// A format whose files consist of compressed members (gzip) or frames (zstd).
struct CompressedFormat {
  std::string_view name;
  bool (*is_start)(std::string_view start);  // whether a member begins, as is_gzip
  bool is_padded;  // zeros may follow members: the block padding of tapes and some archives
};
constexpr CompressedFormat kGzip{"gzip", is_gzip, true};
constexpr CompressedFormat kZstd{"zstd", is_zstd, false};

/// Common part of the decompressors: buffers compressed input and counts decompressed output.
class Decompressing : public ByteStream {
 public:
  Decompressing(std::unique_ptr<ByteStream> from, std::string path, const CompressedFormat& format)
      : from_(std::move(from)), path_(std::move(path)), format_(format), buffer_(kBufferBytes) {}

  std::size_t read(std::span<char> to) final {
    std::size_t filled = 0;
    while (filled < to.size() && has_more()) {
      const std::size_t count = decompress(to.subspan(filled));
      filled += count;
      text_bytes_ += static_cast<std::int64_t>(count);
    }
    return filled;
  }
  [[nodiscard]] std::int64_t consumed() const noexcept final { return from_->consumed(); }

 protected:
  /// Consumes some compressed bytes and returns the number of decompressed bytes written. Sets
  /// is_complete_ and is_full_. If is_complete_ is set, a member begins.
  [[nodiscard]] virtual std::size_t decompress(std::span<char> to) = 0;

  [[nodiscard]] std::span<char> compressed() {
    return std::span(buffer_).first(available_).subspan(taken_);
  }
  void take(std::size_t count) { taken_ += count; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[noreturn]] void refuse_damaged(std::string_view reason) const {
    fail(ErrorKind::data,
         "data file '{}' is damaged: its {} data is invalid near byte {} ({}); fetch or compress "
         "it again",
         path(), format_.name, offset(), reason);
  }

  bool is_complete_ = false;  // the bytes consumed so far end a member or frame
  bool is_full_ = false;      // more output may follow without more input

 private:
  /// Returns whether there is something to decompress.
  bool has_more() {
    if (is_full_) return true;
    if (is_complete_) return has_another();
    if (fill(1)) return true;
    fail(ErrorKind::data,
         "data file '{}' is truncated: its {} data ends early, at byte {}, after {} decompressed "
         "bytes; fetch or compress it again",
         path(), format_.name, from_->consumed(), text_bytes_);
  }

  /// Returns whether another member follows a complete one.
  bool has_another() {
    constexpr std::size_t kStartBytes = 4;  // of is_start
    while (format_.is_padded && fill(1) && compressed().front() == '\0') {
      const std::span<char> left = compressed();
      take(static_cast<std::size_t>(std::ranges::find_if(left, [](char c) { return c != '\0'; }) -
                                    left.begin()));
    }
    if (!fill(kStartBytes)) return false;
    const std::span<char> left = compressed();
    if (format_.is_start({left.data(), left.size()})) return true;
    fail(ErrorKind::data,
         "data file '{}' has other bytes after its {} data, from byte {} on; fetch or compress it "
         "again, or remove them: head -c {} {} >NEW_FILE",
         path(), format_.name, offset(), offset(), path());
  }

  /// Reads more compressed bytes if fewer than `count` are left. Returns whether any are left.
  bool fill(std::size_t count) {
    const std::size_t left = available_ - taken_;
    if (left >= count) return true;
    std::memmove(buffer_.data(), buffer_.data() + taken_, left);
    taken_ = 0;
    available_ = left + from_->read(std::span(buffer_).subspan(left));
    return available_ > 0;
  }

  /// The number of compressed bytes that were taken.
  [[nodiscard]] std::int64_t offset() const {
    return from_->consumed() - static_cast<std::int64_t>(available_ - taken_);
  }

  std::unique_ptr<ByteStream> from_;
  std::string path_;
  const CompressedFormat& format_;
  std::vector<char> buffer_;
  std::size_t available_ = 0;  // bytes in buffer_
  std::size_t taken_ = 0;      // of them
  std::int64_t text_bytes_ = 0;
};

class GzipStream final : public Decompressing {
 public:
  GzipStream(std::unique_ptr<ByteStream> from, const std::string& path)
      : Decompressing(std::move(from), path, kGzip) {
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

  z_stream state_{};
};

class ZstdStream final : public Decompressing {
 public:
  ZstdStream(std::unique_ptr<ByteStream> from, const std::string& path)
      : Decompressing(std::move(from), path, kZstd), state_(::ZSTD_createDStream()) {
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

  std::unique_ptr<ZSTD_DStream, Deleter> state_;
};

}  // namespace

std::unique_ptr<ByteStream> open_bytes(const std::string& path,
                                       const std::function<void()>& on_wait) {
  std::unique_ptr<ByteStream> plain;
  if (path == kStandardInput) {
    plain = std::make_unique<StandardInput>(on_wait);
  } else {
    plain = std::make_unique<PlainStream>(path);
  }
  std::string start(4, '\0');
  start.resize(plain->read(start));
  auto whole = std::make_unique<Unread>(start, std::move(plain));
  if (is_gzip(start)) return std::make_unique<GzipStream>(std::move(whole), path);
  if (is_zstd(start)) return std::make_unique<ZstdStream>(std::move(whole), path);
  return whole;
}

bool is_gzip(std::string_view start) { return start.starts_with("\x1f\x8b"); }

bool is_zstd(std::string_view start) {
  constexpr std::uint32_t kFirstToSkip = 0x184D2A50;  // first of 16 magic numbers
  std::uint32_t magic = 0;
  if (start.size() < sizeof(magic)) return false;
  std::memcpy(&magic, start.data(), sizeof(magic));
  return magic == ZSTD_MAGICNUMBER || (magic & ~std::uint32_t{0xF}) == kFirstToSkip;
}

}  // namespace dtrain::data
