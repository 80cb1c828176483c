#include "dtrain/data/source/byte_stream.h"

#include <zlib.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::data::byte_stream_test {
namespace {

using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::message_of;
using dtrain::testing::Names;
using dtrain::testing::TempFolder;

std::string some_text(std::size_t size) {
  std::string text;
  for (std::uint32_t x = 1; text.size() < size; x = x * 1664525 + 1013904223) {
    text += static_cast<char>('a' + x % 26 / (1 + x % 3));
  }
  return text;
}

std::string zipped(const std::string& text) {
  z_stream state{};
  REQUIRE(::deflateInit2(&state, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(::deflateBound(&state, text.size()) + 64, '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  state.avail_in = static_cast<uInt>(text.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<uInt>(out.size());
  REQUIRE(::deflate(&state, Z_FINISH) == Z_STREAM_END);
  out.resize(state.total_out);
  ::deflateEnd(&state);
  return out;
}

std::string zstandard(const std::string& text) {
  std::string out(::ZSTD_compressBound(text.size()), '\0');
  out.resize(::ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

/// The content of a file, read in chunks of this size.
std::string content_of(const std::string& path, std::size_t piece) {
  const auto stream = open_bytes(path);
  std::string text;
  std::string buffer(piece, '\0');
  for (;;) {
    const std::size_t count = stream->read(buffer);
    text.append(buffer, 0, count);
    if (count < piece) return text;
  }
}

TEST_CASE("Plain, gzip and zstd files give the same bytes, for any chunk size") {
  const TempFolder folder;
  const std::string text = some_text(300'000);
  const std::string half = text.substr(0, text.size() / 2);
  const std::string rest = text.substr(text.size() / 2);
  for (const std::size_t piece :
       {std::size_t{1}, std::size_t{1000}, text.size(), 2 * text.size()}) {
    CHECK(content_of(folder.write("plain", text), piece) == text);
    CHECK(content_of(folder.write("one.gz", zipped(text)), piece) == text);
    CHECK(content_of(folder.write("two.gz", zipped(half) + zipped(rest)), piece) == text);
    const std::string padding(600'000, '\0');
    CHECK(content_of(folder.write("p.gz", zipped(half) + padding + zipped(rest) + padding),
                     piece) == text);
    CHECK(content_of(folder.write("one.zst", zstandard(text)), piece) == text);
    CHECK(content_of(folder.write("two.zst", zstandard(half) + zstandard(rest)), piece) == text);
  }
}

TEST_CASE("A member may begin before, at or after the end of a buffer") {
  const TempFolder folder;
  const std::string first = zipped("first ");
  for (std::size_t begin = (256 << 10) - 4; begin <= (256 << 10) + 1; ++begin) {
    INFO(begin);
    const std::string padding(begin - first.size(), '\0');
    CHECK(content_of(folder.write("b.gz", first + padding + zipped("second")), 64) ==
          "first second");
    const auto size = static_cast<std::uint32_t>(begin - zstandard("first ").size() - 8);
    std::string frame("\x50\x2a\x4d\x18", 4);  // is skipped
    frame.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(size, 'x');
    CHECK(content_of(folder.write("b.zst", zstandard("first ") + frame + zstandard("second")),
                     64) == "first second");
  }
}

TEST_CASE("Bytes after the compressed data are rejected by their offset, not as truncation") {
  const TempFolder folder;
  const std::string text = some_text(200);
  const std::string padded = zipped(text) + std::string(3, '\0');
  for (const std::string& whole : {zipped(text), padded, zstandard(text)}) {
    for (const std::string other : {"\n", "\r\n", "one\n", "more words\n"}) {
      INFO(other);
      const std::string path = folder.write("more", whole + other);
      CHECK_THAT(message_of(ErrorKind::data, [&] { content_of(path, 64); }),
                 Names(path, "byte " + std::to_string(whole.size())) && !Contains("truncated"));
    }
  }
}

TEST_CASE("A truncated compressed file is rejected by name and offset at every length") {
  const TempFolder folder;
  const std::string text = some_text(200);
  for (const std::string& whole : {zipped(text), zstandard(text)}) {
    for (std::size_t length = 5; length < whole.size(); ++length) {
      INFO(length);
      const std::string path = folder.write("cut", whole.substr(0, length));
      CHECK_THAT(message_of(ErrorKind::data, [&] { content_of(path, 64); }),
                 Names(path, "truncated", "byte " + std::to_string(length)));
    }
  }
}

TEST_CASE("Damaged compressed bytes are rejected by name and offset") {
  const TempFolder folder;
  for (std::string whole : {zipped(some_text(5000)), zstandard(some_text(5000))}) {
    whole[whole.size() / 2] = static_cast<char>(whole[whole.size() / 2] ^ 0x55);
    whole[whole.size() / 2 + 1] = static_cast<char>(whole[whole.size() / 2 + 1] ^ 0x55);
    whole[12] = static_cast<char>(whole[12] ^ 0xff);
    const std::string path = folder.write("damaged", whole);
    CHECK_THAT(message_of(ErrorKind::data, [&] { content_of(path, 64); }),
               Contains(path) && Contains("near byte"));
  }
}

TEST_CASE("A zstd file may begin with a skippable frame") {
  const TempFolder folder;
  const std::string frame("\x5f\x2a\x4d\x18\x04\0\0\0abcd", 12);
  CHECK(content_of(folder.write("p.zst", frame + zstandard("text")), 64) == "text");
}

TEST_CASE("A zstd file with too large a window is not reported as damaged") {
  const TempFolder folder;
  ZSTD_CCtx* state = ::ZSTD_createCCtx();
  ::ZSTD_CCtx_setParameter(state, ZSTD_c_windowLog, 28);
  std::string out(4096, '\0');
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  ZSTD_inBuffer from{"text", 4, 0};
  REQUIRE(::ZSTD_isError(::ZSTD_compressStream2(state, &to, &from, ZSTD_e_flush)) == 0);
  ::ZSTD_freeCCtx(state);
  const std::string path = folder.write("long.zst", out.substr(0, to.pos));
  CHECK_THAT(
      message_of(ErrorKind::data, [&] { content_of(path, 64); }),
      Contains(path) && Contains("128 MiB") && Contains("--long=31") && !Contains("damaged"));
}

}  // namespace
}  // namespace dtrain::data::byte_stream_test
