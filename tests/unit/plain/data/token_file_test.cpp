#include "dtrain/data/tokens/token_file.h"

#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <numeric>

#include "dtrain/base/checksum.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::data::token_file_test {
namespace {

using base::ErrorKind;
using Catch::Matchers::Contains;
using dtrain::testing::flipped;
using dtrain::testing::message_of;
using dtrain::testing::Names;
using dtrain::testing::TempFolder;

template <typename Integer>
void append(std::string& out, Integer value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

/// A token file built independently, from docs/formats/tokens.md.
template <typename Token>
std::string token_file(std::uint64_t vocab, const std::vector<Token>& tokens,
                       std::uint32_t version = 1) {
  std::string out(
      "\x89"
      "DTOK\r\n\x1a",
      8);
  append(out, version);
  append(out, std::uint32_t{sizeof(Token)});
  append(out, vocab);
  append(out, std::uint64_t{tokens.size()});
  std::uint64_t hash = 14695981039346656037U;
  for (const char c : out) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 1099511628211U;
  }
  append(out, hash);
  for (const Token token : tokens) append(out, token);
  return out;
}

std::vector<std::int64_t> all_tokens(const TokenFile& file) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(file.size()));
  file.copy(0, tokens);
  return tokens;
}

std::string refusal(const std::string& path, std::int64_t vocab = 256) {
  const std::string message =
      message_of(ErrorKind::data, [&] { std::ignore = TokenFile::open(path, vocab); });
  CHECK_THAT(message, Contains(path));
  return message;
}

TEST_CASE("A text is read as bytes") {
  const TempFolder folder;
  const auto file = TokenFile::open(folder.write("text", "A\xff\nz"), 256);
  CHECK(all_tokens(file) == std::vector<std::int64_t>{65, 255, 10, 122});
  CHECK(file[1] == 255);
}

TEST_CASE("Token files of every width are read") {
  const TempFolder folder;
  const auto one = folder.write("1", token_file<std::uint8_t>(200, {0, 7, 199}));
  const auto two = folder.write("2", token_file<std::uint16_t>(50257, {0, 50256, 513}));
  const auto four = folder.write("4", token_file<std::uint32_t>(100'000, {99'999, 1, 65'536}));
  CHECK(all_tokens(TokenFile::open(one, 256)) == std::vector<std::int64_t>{0, 7, 199});
  CHECK(all_tokens(TokenFile::open(two, 50257)) == std::vector<std::int64_t>{0, 50256, 513});
  CHECK(all_tokens(TokenFile::open(four, 100'000)) == std::vector<std::int64_t>{99'999, 1, 65'536});
}

TEST_CASE("The written header matches the documentation") {
  const auto header = encode_token_header({.bytes_per_token = 2, .vocab = 300, .num_tokens = 0});
  const std::string expected = token_file<std::uint16_t>(300, {});
  REQUIRE(expected.size() == header.size());
  CHECK(std::memcmp(header.data(), expected.data(), header.size()) == 0);
}

TEST_CASE("Copying a range returns exactly that range") {
  const TempFolder folder;
  std::vector<std::uint16_t> tokens(1000);
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
  const auto file = TokenFile::open(folder.write("t", token_file(1000, tokens)), 1000);
  std::vector<std::int64_t> part(10);
  file.copy(990, part);
  CHECK(part.front() == 990);
  CHECK(part.back() == 999);
  CHECK_THAT(message_of(ErrorKind::internal, [&] { file.copy(991, part); }), Contains("991"));
}

TEST_CASE("Missing and empty files, folders and FIFOs are rejected by name") {
  const TempFolder folder;
  refusal(folder.path("missing"));
  refusal(folder.write("empty", ""));
  refusal(folder.path(""));
  REQUIRE(::mkfifo(folder.path("fifo").c_str(), 0600) == 0);
  refusal(folder.path("fifo"));
}

TEST_CASE("A truncated token file is rejected by name at every length") {
  const TempFolder folder;
  const std::string whole = token_file<std::uint16_t>(300, {1, 2, 299});
  for (std::size_t length = 1; length < whole.size(); ++length) {
    INFO(length);
    CHECK_THAT(refusal(folder.write("t", whole.substr(0, length)), 300), Contains("truncated"));
  }
  CHECK_THAT(refusal(folder.write("t", whole + "x"), 300), Names("1 bytes", "3 tokens"));
}

TEST_CASE("Every bit of a token file's header matters") {
  const TempFolder folder;
  const std::string whole = token_file<std::uint16_t>(300, {1, 2, 299});
  // A flipped bit in the magic makes the format unknown; its NUL bytes show that it is not text.
  for (std::size_t bit = 0; bit < 8 * kTokenHeaderBytes; ++bit) {
    INFO(bit);
    refusal(folder.write("t", flipped(whole, bit)), 300);
  }
}

TEST_CASE("Every bit of a prepared file's checksum and tokens matters to its checksum") {
  const TempFolder folder;
  const std::string text = "some text";
  const auto header = encode_token_header(
      {.num_tokens = std::ssize(text), .checksum = base::checksum_of(std::string_view(text))});
  const std::string whole(reinterpret_cast<const char*>(header.data()), header.size());
  const auto checksum_of_file = [&](const std::string& bytes) {
    return TokenFile::open(folder.write("t", bytes), 256).checksum();
  };
  CHECK(checksum_of_file(whole + text) == checksum_of_file(text));
  for (std::size_t bit = 8 * kTokenHeaderBytes; bit < 8 * (whole + text).size(); ++bit) {
    INFO(bit);
    const std::string damaged = flipped(whole + text, bit);
    CHECK_THAT(message_of(ErrorKind::data, [&] { std::ignore = checksum_of_file(damaged); }),
               Contains("damaged"));
  }
  CHECK_THAT(refusal(folder.write("t", whole.substr(0, 44))), Contains("truncated"));
}

/// A file of version 3: two-byte tokens, two documents and a tokenizer model.
std::string file_of_version_3(const std::vector<std::uint16_t>& tokens, const std::string& model) {
  std::string tail(padding_after(kTokenHeaderBytes3 + 2 * tokens.size()), '\0');
  append(tail, std::uint64_t{1});
  append(tail, std::uint64_t{tokens.size()});
  tail += model;
  const auto header = encode_token_header(
      {.bytes_per_token = 2,
       .vocab = 300,
       .num_tokens = std::ssize(tokens),
       .checksum = base::checksum_of(std::as_bytes(std::span(tokens))),
       .details = TokenDetails{.num_bytes = 11,
                               .num_words = 4,
                               .num_documents = 2,
                               .model_bytes = std::ssize(model),
                               .tokenizer = TokenizerKind::sentencepiece,
                               .tail_checksum = base::checksum_of(std::string_view(tail))}});
  std::string file(reinterpret_cast<const char*>(header.data()), header.size());
  for (const std::uint16_t token : tokens) append(file, token);
  return file + tail;
}

TEST_CASE("A token file records its documents, its text's size and its tokenizer") {
  const TempFolder folder;
  const auto file =
      TokenFile::open(folder.write("t", file_of_version_3({7, 299, 5}, "model")), 300);
  CHECK(all_tokens(file) == std::vector<std::int64_t>{7, 299, 5});
  CHECK(file.details().num_documents == 2);
  CHECK(file.details().num_bytes == 11);
  CHECK(file.details().num_words == 4);
  CHECK(file.tokenizer_model() == "model");
  CHECK(file.vocab() == 300);
  CHECK_THAT(file.tokenizer(), Contains("sentencepiece xxh3"));
  const auto other = TokenFile::open(folder.write("u", file_of_version_3({7}, "Model")), 300);
  CHECK(other.tokenizer() != file.tokenizer());
}

TEST_CASE("Every bit of a version 3 file matters, and any truncation is rejected") {
  const TempFolder folder;
  const std::string whole = file_of_version_3({1, 2, 299}, "model");
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    INFO(bit);
    const std::string path = folder.write("t", flipped(whole, bit));
    message_of(ErrorKind::data, [&] { std::ignore = TokenFile::open(path, 300).checksum(); });
  }
  for (std::size_t length = 1; length < whole.size(); ++length) {
    INFO(length);
    CHECK_THAT(refusal(folder.write("t", whole.substr(0, length)), 300), Contains("truncated"));
  }
  CHECK_THAT(refusal(folder.write("t", whole + "x"), 300), Names("damaged after"));
}

TEST_CASE("Token files of another version are rejected with both versions") {
  const TempFolder folder;
  CHECK_THAT(refusal(folder.write("t", token_file<std::uint8_t>(256, {1}, 4))),
             Names("version 4", "1 to 3"));
}

TEST_CASE("Token files with an impossible width, vocabulary or count are rejected") {
  const TempFolder folder;
  CHECK_THAT(refusal(folder.write("t", token_file<std::uint64_t>(256, {1}))),
             Names("8 bytes", "1, 2 and 4"));
  CHECK_THAT(refusal(folder.write("t", token_file<std::uint8_t>(256, {}))), Contains("no tokens"));
  CHECK_THAT(refusal(folder.write("t", token_file<std::uint16_t>(50257, {1})), 256),
             Contains("50257") && Contains("256"));
  CHECK_THAT(refusal(folder.write("t", token_file<std::uint16_t>(~std::uint64_t{0}, {1})), 256),
             Contains("vocabulary"));
}

TEST_CASE("A token outside the vocabulary is detected at open, with its position") {
  const TempFolder folder;
  const auto one = folder.write("1", token_file<std::uint8_t>(100, {0, 99, 100, 255}));
  const auto two = folder.write("2", token_file<std::uint16_t>(256, {255, 256}));
  const auto four = folder.write("4", token_file<std::uint32_t>(256, {0, 1, 2, 0xFFFFFFFF}));
  CHECK_THAT(refusal(one, 100), Names("token 100", "position 2"));
  CHECK_THAT(refusal(two, 256), Names("token 256", "position 1"));
  CHECK_THAT(refusal(four, 256), Names("token 4294967295", "position 3"));
  CHECK(TokenFile::open(two, 257).size() == 2);
}

TEST_CASE("A token changed to one outside the vocabulary after open is detected on read") {
  const TempFolder folder;
  const auto path = folder.write("t", token_file<std::uint16_t>(256, {1, 2, 3}));
  const auto file = TokenFile::open(path, 256);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(kTokenHeaderBytes + 2)
      .write("\x00\x02", 2);
  CHECK(file[0] == 1);
  CHECK_THAT(message_of(ErrorKind::data, [&] { all_tokens(file); }),
             Names("token 512", "position 1"));
}

TEST_CASE("A file truncated after open is detected on read, also within a page") {
  const TempFolder folder;
  const auto path = folder.write("t", token_file<std::uint16_t>(256, {1, 2, 3}));
  const auto file = TokenFile::open(path, 256);
  std::filesystem::resize_file(path, kTokenHeaderBytes + 4);
  CHECK(file[1] == 2);
  const Names found(path, "byte 44", "46 bytes");
  CHECK_THAT(message_of(ErrorKind::data, [&] { all_tokens(file); }), found);
  CHECK_THAT(message_of(ErrorKind::data, [&] { std::ignore = file.checksum(); }), found);
}

TEST_CASE("A text needs a vocabulary of 256") {
  const TempFolder folder;
  CHECK_THAT(refusal(folder.write("t", "text"), 255), Contains("model.vocab 255"));
}

TEST_CASE("Inputs for data prepare are rejected with its command") {
  const TempFolder folder;
  const auto refused = [&](const std::string& name, std::string_view content) {
    const std::string path = folder.write(name, content);
    const std::string message = refusal(path);
    CHECK_THAT(message, Contains("dtrain data prepare " + path));
    return message;
  };
  for (const std::string_view name : {"a.jsonl", "a.ndjson", "a.jsonl.gz", "a.jsonl.zst"}) {
    CHECK_THAT(refused(std::string(name), "{\"text\": \"x\"}\n"),
               Names("JSON", "text", "--field", "--as-text"));
    CHECK_THAT(refused(std::string(name), "words"), Names("JSON", "--field"));
  }
  CHECK_THAT(refused("a.json", "[\n{\"body\": \"x\"}]"), Names("JSON", "body", "--field"));
  CHECK_THAT(refused("a.txt", "{\"body\": \"x\"}"), Names("JSON", "body"));
  CHECK_THAT(refused("a.txt.gz", "\x1f\x8b\x08xxxx"), Contains("gzip-compressed"));
  CHECK_THAT(refused("a.zst", "\x28\xb5\x2f\xfdxxx"), Contains("zstd-compressed"));
  CHECK_THAT(refused("p.zst", std::string_view("\x50\x2a\x4d\x18\x04\0\0\0", 8)),
             Contains("zstd-compressed"));
}

TEST_CASE("llm.c files without training tokens are rejected without advising data prepare") {
  const TempFolder folder;
  for (const std::uint32_t magic : {20240522U, 20240326U}) {
    std::string content;
    append(content, magic);
    CHECK_THAT(refusal(folder.write("f", content)), Contains("llm.c") && !Contains("data prepare"));
  }
}

TEST_CASE("Files that are not text are rejected with their format") {
  const TempFolder folder;
  const auto refused = [&](std::string_view content) {
    return refusal(folder.write("f", content));
  };
  CHECK_THAT(refused("\x1f\x8b\x08xxxx"), Contains("gzip"));
  CHECK_THAT(refused("PK\x03\x04xxx"), Contains("zip"));
  CHECK_THAT(refused("\x28\xb5\x2f\xfdxxx"), Contains("zstd"));
  CHECK_THAT(refused("BZh11AY&SY\x92"), Contains("bzip2"));
  CHECK_THAT(refused("BZh91AY&SY\x92"), Contains("bzip2"));
  CHECK_THAT(refused("BZh3\x17rE8P\x90"), Contains("bzip2"));
  CHECK_THAT(refused("\x7f"
                     "ELF\x02"),
             Contains("program"));
  CHECK_THAT(refused(std::string_view("\x02\0\0\0\0\0\0\0{}", 10)), Contains("safetensors"));
  CHECK_THAT(refused(std::string_view("te\0xt", 5)), Contains("NUL"));
  CHECK_THAT(refused(std::string_view("\0", 1)), Contains("NUL"));
}

}  // namespace
}  // namespace dtrain::data::token_file_test
