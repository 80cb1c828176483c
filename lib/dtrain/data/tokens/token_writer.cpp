#include "dtrain/data/tokens/token_writer.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::data {

namespace {

using base::ErrorKind;
using base::fail;

template <typename Token>
void append_as(std::span<const std::uint32_t> tokens, std::vector<std::byte>& bytes) {
  const std::size_t before = bytes.size();
  bytes.resize(before + tokens.size() * sizeof(Token));
  std::byte* to = bytes.data() + before;
  for (const std::uint32_t token : tokens) {
    const auto narrow = static_cast<Token>(token);
    std::memcpy(to, &narrow, sizeof(narrow));
    to += sizeof(narrow);
  }
}

}  // namespace

std::int64_t bytes_per_token(std::int64_t vocab) {
  if (vocab <= std::int64_t{1} << 8) return 1;
  return vocab <= std::int64_t{1} << 16 ? 2 : 4;
}

void append_tokens(std::span<const std::uint32_t> tokens, std::int64_t width,
                   std::vector<std::byte>& bytes) {
  if (width == 1) return append_as<std::uint8_t>(tokens, bytes);
  if (width == 2) return append_as<std::uint16_t>(tokens, bytes);
  append_as<std::uint32_t>(tokens, bytes);
}

SpilledNumbers::SpilledNumbers(const std::string& beside) : beside_(beside) {
  std::string name = beside + ".documents-XXXXXX";
  const int descriptor = ::mkstemp(name.data());
  if (descriptor < 0) refuse();
  ::unlink(name.c_str());
  file_.reset(::fdopen(descriptor, "w+b"));
  if (file_ == nullptr) refuse();
}

void SpilledNumbers::add(std::uint64_t number) {
  if (std::fwrite(&number, sizeof(number), 1, file_.get()) != 1) refuse();
  ++size_;
}

template <typename Visit>
void SpilledNumbers::read_all(Visit visit) {
  std::array<std::byte, 64 * 1024> buffer;
  if (std::fseek(file_.get(), 0, SEEK_SET) != 0) refuse();
  std::int64_t left = size_ * static_cast<std::int64_t>(sizeof(std::uint64_t));
  while (left > 0) {
    const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), file_.get());
    if (count == 0) refuse();
    visit(std::span<const std::byte>(buffer).first(count));
    left -= static_cast<std::int64_t>(count);
  }
}

void SpilledNumbers::refuse() const {
  fail(ErrorKind::data, "a temporary file beside '{}' cannot be written: {}", beside_,
       std::strerror(errno));
}

TokenWriter::TokenWriter(std::string path, const Origin& origin)
    : path_(std::move(path)),
      file_(path_, ErrorKind::data),
      documents_(path_),
      tokenizer_(origin.tokenizer),
      vocab_(origin.vocab),
      width_(bytes_per_token(origin.vocab)),
      model_(origin.model) {
  const std::array<std::byte, kTokenHeaderBytes3> room{};
  file_.write(room);
}

void TokenWriter::add(std::span<const std::byte> tokens) {
  file_.write(tokens);
  checksum_.add(tokens);
  bytes_ += std::ssize(tokens);
}

void TokenWriter::count_text(std::int64_t num_bytes, std::int64_t num_words) {
  num_bytes_ += num_bytes;
  num_words_ += num_words;
}

void TokenWriter::write_tail(std::span<const std::byte> bytes) {
  file_.write(bytes);
  tail_checksum_.add(bytes);
}

void TokenWriter::finish() {
  DTRAIN_CHECK(bytes_ > 0, "'{}' has no token", path_);
  const std::array<std::byte, 8> zeros{};
  write_tail(
      std::span(zeros).first(padding_after(kTokenHeaderBytes3 + static_cast<std::size_t>(bytes_))));
  documents_.read_all([this](std::span<const std::byte> bytes) { write_tail(bytes); });
  write_tail(std::as_bytes(std::span(model_)));
  file_.rewrite(
      0, encode_token_header({.bytes_per_token = width_,
                              .vocab = vocab_,
                              .num_tokens = num_tokens(),
                              .checksum = checksum_.value(),
                              .details = TokenDetails{.num_bytes = num_bytes_,
                                                      .num_words = num_words_,
                                                      .num_documents = documents_.size(),
                                                      .model_bytes = std::ssize(model_),
                                                      .tokenizer = tokenizer_,
                                                      .tail_checksum = tail_checksum_.value()}}));
}

}  // namespace dtrain::data
