#include "dtrain/data/source/blocks.h"

#include <catch2/catch.hpp>
#include <string>

#include "dtrain/data/source/json_text.h"
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

/// Reassembles the documents from the blocks of files.
Documents documents_of(BlockOptions options, const DocumentOptions& rule = {},
                       RecordReport* report = nullptr) {
  if (!options.cut) options.cut = after_last_space;
  BlockReader reader(std::move(options));
  Documents documents;
  RecordReport unread;
  bool is_open = false;
  Block block;
  while (reader.next(block)) {
    std::string storage;
    for (const TextSpan& part :
         text_spans(block, rule, storage, report != nullptr ? *report : unread)) {
      CHECK(part.begins_document == !is_open);
      if (!is_open) documents.emplace_back();
      documents.back() += part.text;
      is_open = !part.ends_document;
    }
  }
  CHECK_FALSE(is_open);
  return documents;
}

TEST_CASE("Each text is a document, for any block size") {
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

TEST_CASE("Invalid UTF-8 without a cut position is read to its end") {
  const TempFolder folder;
  const std::string bytes = "a" + std::string(300, '\x80');
  CHECK(documents_of({.files = {folder.write("b", bytes)},
                      .cut = [](std::string_view) { return std::size_t{0}; },
                      .block_bytes = 10,
                      .longest_part = 50}) == Documents{bytes});
}

TEST_CASE("A document without a cut position is cut between characters") {
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

TEST_CASE("Each of several texts gets a final newline if requested") {
  const TempFolder folder;
  for (const std::size_t size : {1, 4, 1000}) {
    CHECK(documents_of({.files = {folder.write("a", "no end"), folder.write("b", "ended\n")},
                        .block_bytes = size},
                       {.adds_newline = true}) == Documents{"no end\n", "ended\n"});
  }
}

TEST_CASE("JSON lines become documents; blank lines are ignored") {
  const TempFolder folder;
  BlockOptions options{
      .files = {folder.write("a",
                             "{\"text\": \"one\", \"n\": 1}\n\n{\"text\": \"t\\u00e4\\n\"}\r\n"),
                folder.write("b", "{\"text\": \"\"}\n{\"text\": \"last\"}")},
      .format = Format::json};
  for (const std::size_t size : {1, 20, 1000}) {
    options.block_bytes = size;
    CHECK(documents_of(options, {.field = "text", .adds_newline = true}) ==
          Documents{"one\n", "tä\n", "last\n"});
    CHECK(documents_of(options, {.field = "text"}) == Documents{"one", "tä\n", "last"});
  }
}

TEST_CASE("Objects in arrays, over several lines or on one line are the same records as lines") {
  const TempFolder folder;
  const std::string one = R"({"text": "o, ]n}e", "tags": ["[", {}]})";
  const std::string two = R"({"n": {"text": "\\"}, "text": "two\"\\"})";
  const std::string three = "{\n  \"text\":\r\n    \"three\"\n}";
  const Documents expected{"o, ]n}e", "two\"\\", "three"};
  for (const std::string& text :
       {"[" + one + "," + two + "," + three + "]",
        "\n [\n" + one + ",\n" + two + ", " + three + "\n]\n",
        "[[" + one + "," + two + "],\n[" + three + "], []]", three.substr(0, 0) + one + two + three,
        one + "\r" + two + "\r" + three, "[" + one + "," + two + "," + three + "]]",
        "{\"l\": [\n{\"a\": 1}\n,\n{\"a\": 2}\n], " + one.substr(1) + two + three,
        "{\n" + one.substr(1) + "\n" + two + "\n" + three + "\n"}) {
    INFO(text);
    const std::string path = folder.write("j", text);
    for (const std::size_t size : {1, 7, 20, 1000}) {
      CHECK(documents_of({.files = {path}, .format = Format::json, .block_bytes = size},
                         {.field = "text"}) == expected);
    }
  }
}

TEST_CASE("The unread part of a record need not be valid") {
  const TempFolder folder;
  const std::string deep(300'000, '[');
  const std::string closed(300'000, ']');
  const std::string path = folder.write("j",
                                        "{\"bad\": \"\xff\xfe\", \"text\": \"one\"}\n"
                                        "{\"n\": NaN, \"m\": -Infinity, \"h\": 1" +
                                            std::string(400, '9') +
                                            "e999999, \"text\": \"two\"}\n"
                                            "{\"d\": " +
                                            deep + closed +
                                            ", \"text\": \"three\", \"e\": \"\\q\"}\n"
                                            "{\"\\x\": 1, \"text\": \"four\"}\n"
                                            "{\"text\": \"first\", \"te\\u0078t\": \"last\"}\n");
  CHECK(documents_of({.files = {path}, .format = Format::json}, {.field = "text"}) ==
        Documents{"one", "two", "three", "four", "last"});
}

TEST_CASE("Surrogate pairs become characters, and halves of them U+FFFD") {
  const TempFolder folder;
  const auto text_of = [&](const std::string& escaped) {
    const std::string path = folder.write("j", "{\"text\": \"" + escaped + "\"}\n");
    return documents_of({.files = {path}, .format = Format::json}, {.field = "text"}).at(0);
  };
  CHECK(text_of(R"(\ud83d\ude00)") == "\U0001F600");
  CHECK(text_of(R"(a\ud800b)") == "a\uFFFDb");
  CHECK(text_of(R"(\udc00)") == "\uFFFD");
  CHECK(text_of(R"(\ud800\ud83d\uDE00)") == "\uFFFD\U0001F600");
  CHECK(text_of(R"(\ud800\n\u20ac\u007f)") == "\uFFFD\n\u20AC\x7f");
}

TEST_CASE("A field may be nested, and a list of strings is joined by newlines") {
  const TempFolder folder;
  const auto texts_of = [&](const std::string& lines, const std::string& field) {
    return documents_of({.files = {folder.write("j", lines)}, .format = Format::json},
                        {.field = field});
  };
  CHECK(texts_of("{\"content\": {\"a\": {\"text\": \"in\"}}}\n", "content.a.text") ==
        Documents{"in"});
  CHECK(texts_of("{\"a\": {\"b\": \"nested\"}, \"a.b\": \"exact\"}\n", "a.b") ==
        Documents{"exact"});
  CHECK(texts_of("{\"t\": [\"one\", null , \"two\"]}\n{\"t\": []}\n", "t") ==
        Documents{"one\ntwo"});
}

TEST_CASE("Records whose field is missing or null are counted and skipped") {
  const TempFolder folder;
  const std::string path = folder.write(
      "j",
      "{\"a\": null}\n{\"b\": 1}\n{\"a\": {\"t\": \"x\"}}\n{\"a\": {}}\n{\"a\": {\"t\": null}}\n");
  RecordReport report;
  for (const std::size_t size : {1, 1000}) {
    report = {};
    CHECK(documents_of({.files = {path}, .format = Format::json, .block_bytes = size},
                       {.field = "a.t"}, &report) == Documents{"x"});
    CHECK(report.without_text.count == 4);
    CHECK_THAT(report.without_text.first.at(2), Names(path, "line 4"));
  }
  report.check_field_exists(true);
}

TEST_CASE("A field that no record has is rejected with the names of text fields") {
  const TempFolder folder;
  const auto refusal = [&](const std::string& line) {
    const std::string path = folder.write("j", "\n" + line + "\n{}\n");
    RecordReport report;
    documents_of({.files = {path}, .format = Format::json}, {.field = "text"}, &report);
    report.check_field_exists(false);  // more records may follow
    const std::string message =
        message_of(ErrorKind::data, [&] { report.check_field_exists(true); });
    CHECK_THAT(message, Names(path, "line 2", "\"text\"", "--field"));
    return message;
  };
  CHECK_THAT(refusal("{\"body\": \"x\", \"n\": 1, \"in\": {\"t\": \"\"}}"), Names("body", "in.t"));
  std::string many = "{\"" + std::string(999, 'a') + "\": \"\", ";
  for (int i = 10; i < 40; ++i) many += fmt::format("\"k{}\": \"\", ", i);
  CHECK_THAT(refusal(many + "\"last\": 1}"),
             Contains("aaaa..., k10") && Contains("k18, ...;") && !Contains("k19"));
  RecordReport enough;
  for (int i = 0; i < 1000; ++i)
    enough.add({.without_text = {1, {"place"}}, .first_fault = "fault"});
  message_of(ErrorKind::data, [&] { enough.check_field_exists(false); });
}

TEST_CASE("A bad record is reported with its line, or counted and skipped") {
  const TempFolder folder;
  const auto refusal = [&](const std::string& line) {
    const std::string path =
        folder.write("j", "{\"text\": \"good\"}\n\n" + line + "\n{\"text\": \"good\"}\n");
    std::string message;
    for (const std::size_t size : {1, 1000}) {
      const BlockOptions options{.files = {path}, .format = Format::json, .block_bytes = size};
      message = message_of(ErrorKind::data, [&] { documents_of(options, {.field = "text"}); });
      CHECK_THAT(message, Names(path, "line 3", "--skip-bad-lines"));
      RecordReport report;
      CHECK(documents_of(options, {.field = "text", .skips_bad_records = true}, &report) ==
            Documents{"good", "good"});
      CHECK(report.bad.count == 1);
      CHECK_THAT(report.bad.first.at(0), Names(path, "line 3"));
    }
    return message;
  };
  CHECK_THAT(refusal("{\"text\": 5}"), Contains("number"));
  CHECK_THAT(refusal("{\"text\": {}}"), Contains("object"));
  CHECK_THAT(refusal("{\"text\": [\"a\", 1]}"), Contains("number"));
  CHECK_THAT(refusal("[1]"), Contains("array") && !Contains("--field"));
  CHECK_THAT(refusal("\"text\""), Contains("string"));
  for (const std::string_view bad :
       {"{\"text\": \"x\"", "{\"text\": \"x", "{\"text\" \"x\"}", "{\"text\": }", "{text: \"x\"}",
        "{\"text\": \"x\"} y", "{\"text\": \"x\"} {\"text\": \"y\"}", "words", "{\"text\": [\"x\"",
        "{\"text\": \"\xff\"}", "{\"text\": \"\\x\"}", "{\"text\": \"\\u12\"}",
        "{\"text\": \"\t\"}"}) {
    refusal(std::string(bad));
  }
}

TEST_CASE("A bad first line is skipped without the others") {
  const TempFolder folder;
  std::string good;
  for (int i = 0; i < 5; ++i) good += "{\"text\": \"good\"}\n\n";
  const std::string_view closed_twice = "{\"text\": \"x\"}}\n{\"text\": \"good\"}";
  for (const std::string_view bad :
       {"{\"id\": 1, \"m\": {\"x\": 1}, \"text\": \"a\"", "{", "{\"text\": \"a", "{\"id\": 1,",
        "{\"m\": [1", "{\"m\": [", "{\"m\":"}) {
    INFO(bad);
    for (const std::size_t size : {1, 1000}) {
      const auto check = [&](std::string_view end, const Documents& expected, int num_bad) {
        const std::string path =
            folder.write("j", std::string(bad) + "\n" + good + std::string(end));
        RecordReport report;
        CHECK(documents_of({.files = {path}, .format = Format::json, .block_bytes = size},
                           {.field = "text", .skips_bad_records = true}, &report) == expected);
        CHECK(report.bad.count == num_bad);
        CHECK_THAT(report.bad.first.at(0), Names(path, "line 1"));
      };
      check("", Documents(5, "good"), 1);
      check(closed_twice, Documents(6, "good"), 2);
    }
  }
}

TEST_CASE("JSON that ends within an array or object is rejected as truncated") {
  const TempFolder folder;
  for (const std::string_view text : {"[{\"text\": \"a\"},\n{\"text\": \"b\"}",
                                      "[{\"text\": \"a\"},\n{\"text\": ", "{\n\"text\": \"a\"",
                                      "[{\"text\": \"a\"}, \"", "[[{\"text\": \"a\"}]"}) {
    INFO(text);
    const std::string path = folder.write("j", text);
    for (const std::size_t size : {1, 1000}) {
      CHECK_THAT(message_of(ErrorKind::data,
                            [&] {
                              documents_of(
                                  {.files = {path}, .format = Format::json, .block_bytes = size},
                                  {.field = "text", .skips_bad_records = true});
                            }),
                 Names(path, "truncated"));
    }
  }
}

TEST_CASE("An overlong record is reported with its line") {
  const TempFolder folder;
  for (const std::string_view before : {"{}\n{", "[{},\n{"}) {
    const std::string path = folder.write("l", std::string(before) + std::string(200, 'x'));
    CHECK_THAT(message_of(ErrorKind::data,
                          [&] {
                            documents_of({.files = {path},
                                          .format = Format::json,
                                          .block_bytes = 10,
                                          .longest_record = 50});
                          }),
               Names(path, "line 2"));
  }
}

TEST_CASE("Texts that begin like JSON are detected") {
  for (const std::string_view text :
       {"{\"a\": 1}\n", "\xef\xbb\xbf{\"a\":", " \n[\n{ \"a\" : \"", "[[{\"a\":1}]]",
        "{}\n{\"a\": 1}", "[\"a\", \"b\"]", "{\n  \"a\\\"b\": 1", "[\"no end of it",
        "[{}, {\"a\": 1}]", "[null, {\"a\": 1}]", "[[\"a\"], [\"b\"]]", "[\"a\"]\n"}) {
    INFO(text);
    CHECK(begins_as_json(text));
  }
  for (const std::string_view text :
       {"", "{", "{a: 1}", "[1] A note", "[1, 2]", "{\"quoted\"} text", "[\"Yes\" he said]",
        "{} is empty", "\"a\": 1", "{{name}}", "text {\"a\": 1}", "[\"A title\"](http://x) links",
        "[\"To be, or not\", he said]", "[\"Yes,\nhe said", "[{} is empty", "[null] and void"}) {
    INFO(text);
    CHECK_FALSE(begins_as_json(text));
  }
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

TEST_CASE("The first byte of invalid UTF-8 is found at any position") {
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

TEST_CASE("A text is cut before an incomplete last character") {
  CHECK(whole_characters("abc") == 3);
  CHECK(whole_characters("ab\xC3") == 2);
  CHECK(whole_characters("ab\xC3\xA4") == 4);
  CHECK(whole_characters("ab\xF0\x9F\x98") == 2);
  CHECK(whole_characters("ab\xF0\x9F\x98\x80") == 6);
}

TEST_CASE("At most three bytes of malformed text are left out") {
  CHECK(whole_characters("a" + std::string(100, '\x80')) > 97);
  CHECK(whole_characters(std::string(100, '\xF0')) > 97);
}

TEST_CASE("The first and last characters of a text are decoded") {
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
