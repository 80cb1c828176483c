#include "dtrain/data/source/blocks.h"

#include <zlib.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <string>

#include "dtrain/data/source/byte_stream.h"
#include "dtrain/data/tokenizer/utf8.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::data::blocks_test {
namespace {

using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::message_of;
using dtrain::testing::TempFolder;
using Documents = std::vector<std::string>;
using dtrain::testing::Names;

std::size_t after_last_space(std::string_view text) {
  return text.substr(0, text.size() - 1).rfind(' ') + 1;
}

/// What the blocks of files hold, put together again.
Documents documents_of(BlockOptions options, const LineRule& rule = {}) {
  if (!options.cut) options.cut = after_last_space;
  BlockReader reader(std::move(options));
  Documents documents;
  bool is_open = false;
  Block block;
  while (reader.next(block)) {
    std::string storage;
    for (const Part& part : parts_of(block, rule, storage)) {
      CHECK(part.begins_document == !is_open);
      if (!is_open) documents.emplace_back();
      documents.back() += part.text;
      is_open = !part.ends_document;
    }
  }
  CHECK_FALSE(is_open);
  return documents;
}

TEST_CASE("Each text is a document, whatever the size of a block") {
  const TempFolder folder;
  const Documents texts{"one two three four five six seven", "x", "eight nine ten eleven "};
  BlockOptions options;
  for (const std::string& text : texts)
    options.files.push_back(folder.write(text.substr(0, 3), text));
  for (const std::size_t size : {1, 2, 3, 7, 16, 1000}) {
    options.block_bytes = size;
    CHECK(documents_of(options) == texts);
  }
}

TEST_CASE("Bytes that are no characters and have no place to cut are read to their end") {
  const TempFolder folder;
  const std::string bytes = "a" + std::string(300, '\x80');
  CHECK(documents_of({.files = {folder.write("b", bytes)},
                      .cut = [](std::string_view) { return std::size_t{0}; },
                      .block_bytes = 10,
                      .longest_part = 50}) == Documents{bytes});
}

TEST_CASE("A document without a place to cut is cut between characters") {
  const TempFolder folder;
  const std::string text = "äöüäöüäöü";
  BlockReader reader({.files = {folder.write("t", text)},
                      .cut = [](std::string_view) { return std::size_t{0}; },
                      .block_bytes = 3,
                      .longest_part = 5});
  std::string found;
  Block block;
  while (reader.next(block)) {
    CHECK(block.bytes.size() % 2 == 0);
    CHECK(block.offset == std::ssize(found));
    found += block.bytes;
  }
  CHECK(found == text);
}

TEST_CASE("Lines of JSON become documents, blank lines none") {
  const TempFolder folder;
  BlockOptions options{
      .files = {folder.write("a",
                             "{\"text\": \"one\", \"n\": 1}\n\n{\"text\": \"t\\u00e4\\n\"}\r\n"),
                folder.write("b", "{\"text\": \"\"}\n{\"text\": \"last\"}")},
      .format = Format::json_lines};
  for (const std::size_t size : {1, 20, 1000}) {
    options.block_bytes = size;
    CHECK(documents_of(options, {.field = "text", .adds_newline = true}) ==
          Documents{"one\n", "tä\n", "last\n"});
    CHECK(documents_of(options, {.field = "text"}) == Documents{"one", "tä\n", "last"});
  }
}

TEST_CASE("A line without the field, or that is no JSON, is named with its number") {
  const TempFolder folder;
  const auto refusal = [&](const std::string& line) {
    const std::string path =
        folder.write("j", "{\"text\": \"good\"}\n\n" + line + "\n{\"text\": \"good\"}\n");
    for (const std::size_t size : {1, 1000}) {
      const std::string message = message_of(ErrorKind::data, [&] {
        documents_of({.files = {path}, .format = Format::json_lines, .block_bytes = size},
                     {.field = "text"});
      });
      CHECK_THAT(message, Contains(path) && Contains("line 3"));
      if (size > 1) return message;
    }
    return std::string();
  };
  CHECK_THAT(refusal("{\"body\": \"x\", \"n\": 1}"),
             Contains("no field \"text\"") && Contains("body") && Contains("--field"));
  std::string many = "{";
  for (int i = 10; i < 40; ++i) many += fmt::format("\"k{}\": \"\", ", i);
  CHECK_THAT(refusal(many + "\"" + std::string(999, 'a') + "\": \"\"}"),
             Contains("aaaa..., k10") && Contains("k18, ...;") && !Contains("k19"));
  CHECK_THAT(refusal("{\"text\": 5}"), Contains("number"));
  CHECK_THAT(refusal("[1]"), Contains("array"));
  CHECK_THAT(refusal("{\"text\": \"x\""), Contains("not JSON"));
  CHECK_THAT(refusal("{\"text\": \"\xff\"}"), Contains("not JSON"));
  CHECK_THAT(message_of(ErrorKind::data,
                        [&] {
                          documents_of({.files = {folder.write("l", std::string(200, 'x'))},
                                        .format = Format::json_lines,
                                        .block_bytes = 10,
                                        .longest_part = 50});
                        }),
             Contains("line 1"));
}

const std::string kFirst =
    " \n = First = \n \n Text of it . \n = = Section = = \n More , = x = . \n \n";
const std::string kSecond = " = The Second = \n \n Words \n";

TEST_CASE("Articles of WikiText become documents, sections do not") {
  const TempFolder folder;
  BlockOptions options{.files = {folder.write("w", kFirst + kSecond + " \n" + kSecond)},
                       .format = Format::wikitext};
  for (const std::size_t size : {1, 10, 50, 70, 1000}) {
    INFO(size);
    options.block_bytes = size;
    CHECK(documents_of(options) == Documents{kFirst, kSecond + " \n", kSecond});
  }
}

TEST_CASE("Words of WikiText are counted with an end of every line") {
  CHECK(count_words(" = First = \n") == 4);
  CHECK(count_words(" \n a b\n") == 4);
  CHECK(count_words("") == 0);
}

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

/// All of a file, read in pieces of this size.
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

TEST_CASE("Plain, gzip and zstd files give the same bytes, whatever the size of a piece") {
  const TempFolder folder;
  const std::string text = some_text(300'000);
  const std::string half = text.substr(0, text.size() / 2);
  const std::string rest = text.substr(text.size() / 2);
  for (const std::size_t piece :
       {std::size_t{1}, std::size_t{1000}, text.size(), 2 * text.size()}) {
    CHECK(content_of(folder.write("plain", text), piece) == text);
    CHECK(content_of(folder.write("one.gz", zipped(text)), piece) == text);
    CHECK(content_of(folder.write("two.gz", zipped(half) + zipped(rest)), piece) == text);
    CHECK(content_of(folder.write("one.zst", zstandard(text)), piece) == text);
    CHECK(content_of(folder.write("two.zst", zstandard(half) + zstandard(rest)), piece) == text);
  }
}

TEST_CASE("A compressed file that ends early is refused by name and place at every length") {
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

TEST_CASE("Damaged compressed bytes are refused by name and place") {
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

TEST_CASE("A zstd file may begin with a frame to be skipped") {
  const TempFolder folder;
  const std::string frame("\x5f\x2a\x4d\x18\x04\0\0\0abcd", 12);
  CHECK(content_of(folder.write("p.zst", frame + zstandard("text")), 64) == "text");
}

TEST_CASE("A zstd file with a window that is too large is not called damaged") {
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

TEST_CASE("The first byte that is no UTF-8 is found, wherever it stands") {
  for (const std::string_view good : {"", "plain", "äöü", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                                      "\xED\x9F\xBF", "\xEE\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    CHECK_FALSE(invalid_utf8_at(good).has_value());
  }
  for (const std::string_view bad :
       {"\x80", "\xC3", "\xC0\xAF", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE2\x82",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE2(\xA1"}) {
    for (std::size_t before = 0; before < 20; ++before) {
      const std::string text = std::string(before, 'x') + std::string(bad) + "xxxxxxxxxxx";
      CHECK(invalid_utf8_at(text) == before);
    }
  }
}

TEST_CASE("A text is cut before the character that lacks its end") {
  CHECK(whole_characters("abc") == 3);
  CHECK(whole_characters("ab\xC3") == 2);
  CHECK(whole_characters("ab\xC3\xA4") == 4);
  CHECK(whole_characters("ab\xF0\x9F\x98") == 2);
  CHECK(whole_characters("ab\xF0\x9F\x98\x80") == 6);
}

TEST_CASE("Of bytes that are no text almost all are taken") {
  CHECK(whole_characters("a" + std::string(100, '\x80')) > 97);
  CHECK(whole_characters(std::string(100, '\xF0')) > 97);
}

TEST_CASE("The characters at the ends of a text are read") {
  CHECK(first_character("a\xC3\xA4") == U'a');
  CHECK(last_character("a\xC3\xA4") == U'\xE4');
  CHECK(first_character("\xE2\x82\xAC-") == U'\u20AC');
  CHECK(last_character("\xF0\x9F\x98\x80") == U'\U0001F600');
  for (const std::string_view bad : {"", "\xC3", "\x80\x80\x80\x80\x80", "\xF0\x9F\x98"}) {
    CHECK(first_character(bad) == 0);
    CHECK(last_character(bad) == 0);
  }
}

}  // namespace
}  // namespace dtrain::data::blocks_test
