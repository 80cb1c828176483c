#include "launcher/local/rank_stream.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace launcher {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 16;
constexpr std::size_t kKeptLines = 10;
constexpr std::size_t kKeptBytesOfLine = 500;

/// Removes the escape sequences that erase the line from the front of a progress text: dtrun erases
/// the line itself.
///
/// Returns: true if there were any.
bool strip_erasures(std::string_view& text) {
  const auto before = text.size();
  for (bool found = true; found;) {
    found = false;
    for (const std::string_view erase : {"\x1b[K", "\x1b[2K", "\x1b[J"}) {
      if (!text.starts_with(erase)) continue;
      text.remove_prefix(erase.size());
      found = true;
    }
  }
  return text.size() != before;
}

}  // namespace

RankStream::RankStream(dtrain::base::Descriptor pipe, RankStreamOptions options)
    : pipe_(std::move(pipe)), options_(std::move(options)), splitter_(options_.live) {}

bool RankStream::read(SharedOutput& console) {
  std::array<char, kBuffer> buffer;
  const ssize_t length = ::read(pipe_.get(), buffer.data(), buffer.size());
  if (length < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (length <= 0) {
    pipe_.reset();
    return false;
  }
  const std::string_view bytes(buffer.data(), static_cast<std::size_t>(length));
  options_.log.write(bytes);
  splitter_.feed(bytes, [&](std::string_view text, bool live) { take(console, text, live); });
  return true;
}

void RankStream::drain(SharedOutput& console) {
  constexpr std::size_t kMostInPipe = std::size_t{1} << 20;  // unless root has raised it
  for (std::size_t reads = 0; reads < kMostInPipe / kBuffer && open(); ++reads) {
    if (!read(console)) return;
  }
}

void RankStream::finish(SharedOutput& console) {
  drain(console);
  splitter_.finish([&](std::string_view text, bool live) { take(console, text, live); });
  pipe_.reset();
}

void RankStream::take(SharedOutput& console, std::string_view text, bool is_live) {
  if (is_live) {
    const bool erased = strip_erasures(text);
    // Only an erasure removes the live line; some programs begin to draw with empty text.
    if (erased || !text.empty()) console.live(text);
    return;
  }
  if (options_.stream == Stream::error && !text.empty()) keep(text);
  if (!options_.shown) return;
  // With an empty line after progress text, a program keeps that text on the screen.
  if (options_.live && text.empty() && console.commit_live(options_.prefix)) return;
  console.line(options_.stream, options_.prefix, text);
}

void RankStream::keep(std::string_view line) {
  last_lines_.emplace_back(line.substr(0, kKeptBytesOfLine));
  if (last_lines_.size() > kKeptLines) last_lines_.pop_front();
}

void RankStream::insert(SharedOutput& console, std::string_view line,
                        std::optional<std::string_view> prefix) {
  drain(console);
  splitter_.finish([&](std::string_view text, bool live) { take(console, text, live); });
  options_.log.write(std::string(line) + "\n");
  keep(line);
  if (options_.live) console.live({});
  if (prefix) console.line(options_.stream, *prefix, line);
}

}  // namespace launcher
