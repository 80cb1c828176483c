// Tokenizes texts on several threads and writes the tokens in input order.
#include <deque>
#include <future>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/host/threads.h"
#include "dtrain/data/prepare.h"

namespace dtrain::data {
namespace {

/// The tokens of a block, in the file's encoding.
struct EncodedBlock {
  std::vector<std::byte> tokens;
  std::vector<std::int64_t> document_ends;  // offsets in `tokens`, bytes
  std::int64_t num_bytes = 0;               // of text
  std::int64_t num_words = 0;
  std::int64_t consumed = 0;  // file bytes read up to this block
  RecordReport records;
};

EncodedBlock encode_block(const Block& block, const DocumentOptions& rule,
                          const Tokenizer& tokenizer, Encoder& encoder) {
  if (tokenizer.kind() != TokenizerKind::bytes) check_utf8(block);
  const std::optional<std::uint32_t> end_of_document = tokenizer.end_of_document();
  const std::int64_t width = bytes_per_token(tokenizer.vocab());
  std::string storage;
  EncodedBlock encoded;
  std::vector<std::uint32_t> tokens;
  for (const TextSpan& part : text_spans(block, rule, storage, encoded.records)) {
    tokens.clear();
    encoder.encode(part.text, part.begins_document, tokens);
    if (part.ends_document && end_of_document) tokens.push_back(*end_of_document);
    append_tokens(tokens, width, encoded.tokens);
    if (part.ends_document) encoded.document_ends.push_back(std::ssize(encoded.tokens));
    encoded.num_bytes += std::ssize(part.text);
    if (block.format == Format::wikitext) {
      encoded.num_words += static_cast<std::int64_t>(count_words(part.text));
    }
  }
  return encoded;
}

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

BlockOptions block_options(const std::vector<std::string>& files, const PrepareOptions& options,
                           const Tokenizer& tokenizer) {
  return {.files = files,
          .format = options.is_wikitext     ? Format::wikitext
                    : options.field.empty() ? Format::text
                                            : Format::json,
          .cut = [&tokenizer](std::string_view text) { return tokenizer.cut(text); },
          .refuses_json = !options.as_text,
          .on_wait = options.check_stop};
}

RecordReport write_tokens_of(const std::vector<std::string>& files, const PrepareOptions& options,
                             const Tokenizer& tokenizer, TokenWriter& writer,
                             const OnBytes& on_bytes) {
  BlockReader reader(block_options(files, options, tokenizer));
  // A single text and its token file are the same data. Documents of a tokenizer.json have exactly
  // the tokens of their texts.
  const bool is_separate = !options.field.empty() || files.size() > 1;
  const DocumentOptions rule{.field = options.field,
                             .adds_newline = is_separate && !tokenizer.end_of_document() &&
                                             tokenizer.kind() != TokenizerKind::hugging_face,
                             .skips_bad_records = options.skips_bad_records};
  RecordReport records;
  // Block n uses encoder n % threads, which caches words: block n - threads has finished by then.
  std::vector<std::unique_ptr<Encoder>> encoders(static_cast<std::size_t>(options.threads));
  for (auto& encoder : encoders) encoder = tokenizer.make_encoder();
  std::deque<std::future<EncodedBlock>> in_flight;  // in input order
  const auto write_first = [&] {
    const EncodedBlock done = in_flight.front().get();
    in_flight.pop_front();
    write(done, writer);
    records.add(done.records);
    records.check_field_exists(false);
    on_bytes(done.consumed);
  };
  // Reports errors of blocks in flight before a read error, as a single thread would.
  const auto read = [&](Block& block) {
    try {
      return reader.next(block);
    } catch (const base::Error&) {
      while (!in_flight.empty()) write_first();
      throw;
    }
  };
  auto block = std::make_shared<Block>();
  for (std::size_t number = 0; read(*block); ++number) {
    in_flight.push_back(base::start_task([&rule, &tokenizer, block, consumed = reader.consumed(),
                                          encoder = encoders[number % encoders.size()].get()] {
      EncodedBlock encoded = encode_block(*block, rule, tokenizer, *encoder);
      encoded.consumed = consumed;
      return encoded;
    }));
    block = std::make_shared<Block>();
    if (std::ssize(in_flight) == options.threads) write_first();
  }
  while (!in_flight.empty()) write_first();
  records.check_field_exists(true);
  records.not_utf8 = reader.not_utf8();
  return records;
}

}  // namespace dtrain::data
