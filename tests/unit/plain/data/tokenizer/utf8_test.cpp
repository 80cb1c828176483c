#include "dtrain/data/tokenizer/utf8.h"

#include <catch2/catch.hpp>
#include <string>

namespace dtrain::data::utf8_test {
namespace {

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
}  // namespace dtrain::data::utf8_test
