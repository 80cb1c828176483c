// Makes tokens of texts, and texts of tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::data {

/// What makes a token file's tokens; the value stands in the file.
enum class TokenizerKind : std::uint64_t {
  unknown = 0,  ///< somebody else's, which did not come with the tokens
  bytes = 1,    ///< every byte is a token
  sentencepiece = 2,
};

/// Makes tokens for one thread.
class Encoder {
 public:
  virtual ~Encoder() = default;
  /// Appends the tokens of a stretch of a document, which begins it or follows a cut().
  virtual void encode(std::string_view text, bool begins_document,
                      std::vector<std::uint32_t>& tokens) = 0;
};

/// Threads: any.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  [[nodiscard]] virtual TokenizerKind kind() const = 0;
  /// Every token is below it.
  [[nodiscard]] virtual std::int64_t vocab() const = 0;
  /// What open_tokenizer makes the same tokenizer of; empty for bytes.
  [[nodiscard]] virtual std::string_view model() const = 0;
  /// The token that follows each document; none for bytes.
  [[nodiscard]] virtual std::optional<std::uint32_t> end_of_document() const = 0;
  /// The last place, below text.size(), at which `text` can be cut without changing its tokens. A
  /// long text without such a place is cut between two characters; a short one gives 0.
  [[nodiscard]] virtual std::size_t cut(std::string_view text) const = 0;
  /// The bytes that a token stands for within a text.
  [[nodiscard]] virtual std::string text_of(std::int64_t token) const = 0;
  [[nodiscard]] virtual std::unique_ptr<Encoder> make_encoder() const = 0;
};

/// Every byte is a token, and nothing stands between documents.
[[nodiscard]] std::shared_ptr<const Tokenizer> byte_tokenizer();

/// A SentencePiece model, as a file's content; `name` is its file's, for messages.
///
/// Throws: Error{data} where it is none; Error{usage} where libdtrain-sentencepiece.so is missing.
[[nodiscard]] std::shared_ptr<const Tokenizer> open_tokenizer(std::string model,
                                                              const std::string& name);

/// Reads the file.
///
/// Throws: Error{data} as open_tokenizer, and where the file cannot be read.
[[nodiscard]] std::shared_ptr<const Tokenizer> read_tokenizer(const std::string& path);

/// A short text that tells a tokenizer from others: "sentencepiece xxh3 ...", "bytes", "unknown".
[[nodiscard]] std::string identity_of(TokenizerKind kind, std::string_view model);

/// The tokens of a text that a model continues; of an empty one, what comes before a document.
///
/// Throws: Error{data} for a text that is not UTF-8 under a tokenizer that needs it; `name` is the
///         text's.
[[nodiscard]] std::vector<std::int64_t> prompt_tokens(const Tokenizer& tokenizer,
                                                      std::string_view text, std::string_view name);

}  // namespace dtrain::data
