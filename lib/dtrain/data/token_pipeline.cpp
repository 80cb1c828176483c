#include "dtrain/data/token_pipeline.h"

#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/threads.h"
#include "dtrain/data/source/wikitext.h"
#include "dtrain/data/tokenizer/utf8.h"

namespace dtrain::data {
namespace {

/// The tokens of a block, as they lie in the file.
struct EncodedBlock {
  std::vector<std::byte> tokens;
  std::vector<std::int64_t> document_ends;  // in bytes of `tokens`
  std::int64_t num_bytes = 0;               // of text
  std::int64_t num_words = 0;
  std::int64_t consumed = 0;  // bytes of files when the block was read
};

template <typename Token>
void append_tokens(const std::vector<std::uint32_t>& tokens, std::vector<std::byte>& bytes) {
  const std::size_t before = bytes.size();
  bytes.resize(before + tokens.size() * sizeof(Token));
  std::byte* to = bytes.data() + before;
  for (const std::uint32_t token : tokens) {
    const auto narrow = static_cast<Token>(token);
    std::memcpy(to, &narrow, sizeof(narrow));
    to += sizeof(narrow);
  }
}

/// What all threads share.
///
/// Threads: any.
class BlockEncoder {
 public:
  BlockEncoder(const PrepareOptions& options, const Tokenizer& tokenizer)
      : tokenizer_(tokenizer),
        rule_{.field = options.field, .adds_newline = !tokenizer.end_of_document()},
        counts_words_(options.is_wikitext),
        width_(bytes_per_token(tokenizer.vocab())) {}

  [[nodiscard]] EncodedBlock encode(const Block& block) {
    if (tokenizer_.kind() != TokenizerKind::bytes) check_utf8(block);
    std::string storage;
    EncodedBlock encoded;
    std::unique_ptr<Encoder> encoder = borrow();
    std::vector<std::uint32_t> tokens;
    for (const Part& part : parts_of(block, rule_, storage)) {
      tokens.clear();
      encoder->encode(part.text, part.begins_document, tokens);
      if (part.ends_document && tokenizer_.end_of_document()) {
        tokens.push_back(*tokenizer_.end_of_document());
      }
      append(tokens, encoded.tokens);
      if (part.ends_document) encoded.document_ends.push_back(std::ssize(encoded.tokens));
      encoded.num_bytes += std::ssize(part.text);
      if (counts_words_) encoded.num_words += static_cast<std::int64_t>(count_words(part.text));
    }
    give_back(std::move(encoder));
    return encoded;
  }

 private:
  void append(const std::vector<std::uint32_t>& tokens, std::vector<std::byte>& bytes) const {
    if (width_ == 1) return append_tokens<std::uint8_t>(tokens, bytes);
    if (width_ == 2) return append_tokens<std::uint16_t>(tokens, bytes);
    append_tokens<std::uint32_t>(tokens, bytes);
  }

  // Encoders remember words, so that they are used again.
  std::unique_ptr<Encoder> borrow() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return tokenizer_.make_encoder();
    auto encoder = std::move(free_.back());
    free_.pop_back();
    return encoder;
  }
  void give_back(std::unique_ptr<Encoder> encoder) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(encoder));
  }

  const Tokenizer& tokenizer_;
  LineRule rule_;
  bool counts_words_;
  std::int64_t width_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Encoder>> free_;  // guarded by mutex_
};

void write(const EncodedBlock& block, TokenWriter& writer) {
  std::span<const std::byte> rest(block.tokens);
  std::int64_t begin = 0;
  for (const std::int64_t end : block.document_ends) {
    writer.add(rest.first(static_cast<std::size_t>(end - begin)));
    writer.end_document();
    rest = rest.subspan(static_cast<std::size_t>(end - begin));
    begin = end;
  }
  writer.add(rest);
  writer.count_text(block.num_bytes, block.num_words);
}

}  // namespace

void check_utf8(const Block& block) {
  if (block.format == Format::json_lines) return;  // the parser of JSON does
  const auto wrong = invalid_utf8_at(block.bytes);
  if (!wrong) return;
  base::fail(base::ErrorKind::data,
             "data file '{}' is not UTF-8, which its tokenizer needs: byte {:#04x} at offset {} of "
             "the text; convert it with iconv, or leave out --tokenizer to train on bytes",
             block.file, static_cast<unsigned char>(block.bytes[*wrong]),
             block.offset + static_cast<std::int64_t>(*wrong));
}

BlockOptions block_options(const std::vector<std::string>& files, const PrepareOptions& options,
                           const Tokenizer& tokenizer) {
  return {.files = files,
          .format = options.is_wikitext     ? Format::wikitext
                    : options.field.empty() ? Format::text
                                            : Format::json_lines,
          .cut = [&tokenizer](std::string_view text) { return tokenizer.cut(text); }};
}

void write_tokens_of(const std::vector<std::string>& files, const PrepareOptions& options,
                     const Tokenizer& tokenizer, TokenWriter& writer, const OnBytes& on_bytes) {
  BlockReader reader(block_options(files, options, tokenizer));
  BlockEncoder encoder(options, tokenizer);
  std::deque<std::future<EncodedBlock>> in_work;  // in the order of the texts
  const auto write_first = [&] {
    const EncodedBlock done = in_work.front().get();
    in_work.pop_front();
    write(done, writer);
    on_bytes(done.consumed);
  };
  auto block = std::make_shared<Block>();
  while (reader.next(*block)) {
    in_work.push_back(base::start_task([&encoder, block, consumed = reader.consumed()] {
      EncodedBlock encoded = encoder.encode(*block);
      encoded.consumed = consumed;
      return encoded;
    }));
    block = std::make_shared<Block>();
    if (std::ssize(in_work) == options.threads) write_first();
  }
  while (!in_work.empty()) write_first();
}

}  // namespace dtrain::data
