#include "dtrain/data/source/blocks.h"

#include "support/temp_folder.h"

namespace dtrain::data::blocks_test {
namespace {

using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::message_of;
using dtrain::testing::TempFolder;

using Documents = std::vector<std::string>;

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

}  // namespace
}  // namespace dtrain::data::blocks_test
