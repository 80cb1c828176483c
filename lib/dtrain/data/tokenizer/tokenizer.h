// Tokenizers convert text to tokens and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::data {

/// The kind of a token file's tokenizer; the value is saved in the file.
enum class TokenizerKind : std::uint64_t {
  unknown = 0,  ///< the file came without its tokenizer
  bytes = 1,    ///< every byte is a token
  sentencepiece = 2,
  hugging_face = 3,  ///< a tokenizer.json
};

/// Encodes text. Threads: one caller.
class Encoder {
 public:
  virtual ~Encoder() = default;
  /// Appends the tokens of one part of a document. A part begins at the start of the document or at
  /// a cut() position.
  ///
  /// text: UTF-8, except for the byte tokenizer.
  virtual void encode(std::string_view text, bool begins_document,
                      std::vector<std::uint32_t>& tokens) = 0;
};

/// A tokenizer. Threads: any number of callers.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  [[nodiscard]] virtual TokenizerKind kind() const = 0;
  /// Vocabulary size; every token is below it.
  [[nodiscard]] virtual std::int64_t vocab() const = 0;
  /// The serialized model, from which open_tokenizer recreates the tokenizer; empty for bytes.
  /// For a tokenizer.json: the file's content, with a line for end_of_document() if there is one.
  [[nodiscard]] virtual std::string_view model() const = 0;
  /// The token that follows each document; empty for the byte tokenizer, and unless a tokenizer.json
  /// was opened with one.
  [[nodiscard]] virtual std::optional<std::uint32_t> end_of_document() const = 0;
  /// Returns the last position below text.size() at which the text can be cut without changing its
  /// tokens. If there is none, returns a character boundary for a long text, and 0 for a short one.
  /// The text may be malformed, unlike that of encode().
  [[nodiscard]] virtual std::size_t cut(std::string_view text) const = 0;
  /// Decodes one token within a text.
  [[nodiscard]] virtual std::string text_of(std::int64_t token) const = 0;
  [[nodiscard]] virtual std::unique_ptr<Encoder> make_encoder() const = 0;
};

/// The byte tokenizer: every byte is a token, without an end-of-document token.
[[nodiscard]] std::shared_ptr<const Tokenizer> byte_tokenizer();

/// Returns the kind of a tokenizer whose model has this content: hugging_face for JSON, otherwise
/// sentencepiece.
[[nodiscard]] TokenizerKind kind_of_model(std::string_view model);

/// Opens a tokenizer of kind_of_model() from the content of its file. name: the file's name, for
/// messages. advice: what to do if the content is no tokenizer, likewise.
///
/// Throws: as open_sentencepiece or open_hugging_face.
[[nodiscard]] std::shared_ptr<const Tokenizer> open_tokenizer(std::string model,
                                                              const std::string& name,
                                                              std::string_view advice = {});

/// Opens a SentencePiece model.
///
/// Throws: Error{data} if it is not a model; Error{usage} if libdtrain-sentencepiece.so is missing.
[[nodiscard]] std::shared_ptr<const Tokenizer> open_sentencepiece(std::string model,
                                                                  const std::string& name,
                                                                  std::string_view advice);

/// Opens Tokenizer::model() of a tokenizer.json, or the content of the file. Documents have the tokens that the package tokenizers (0.23) gives them
/// without special tokens.
///
/// Throws: Error{data} if it is damaged or has a part that is not supported; Error{usage} if
///         libdtrain-unicode.so is missing.
[[nodiscard]] std::shared_ptr<const Tokenizer> open_hugging_face(std::string model,
                                                                 const std::string& name);

/// Opens the model file at `path`; in a folder, its tokenizer.json. document_end: the added token
/// that follows each document in the tokens of a tokenizer.json; empty for none.
///
/// Throws: as open_tokenizer; Error{data} if the file cannot be read, has no such added token, or is
///         a GGUF file or another file of a Hugging Face model than tokenizer.json; Error{usage}
///         if the model of another kind has its own.
[[nodiscard]] std::shared_ptr<const Tokenizer> read_tokenizer(const std::string& path,
                                                              const std::string& document_end = {});

/// Returns a fingerprint of a tokenizer: "sentencepiece xxh3 ...", "tokenizer.json xxh3 ...",
/// "bytes" or "unknown". The token at the end of documents is no part of it.
[[nodiscard]] std::string identity_of(TokenizerKind kind, std::string_view model);

/// Returns the kind of the tokenizer with this fingerprint; unknown for any other text.
[[nodiscard]] TokenizerKind kind_of_identity(std::string_view identity);

/// Encodes a prompt; an empty prompt becomes the token that precedes a document.
///
/// name:   the prompt's name in messages.
/// Throws: Error{data} if the text is not UTF-8 and the tokenizer requires it, or if a
///         tokenizer.json gives it no tokens.
[[nodiscard]] std::vector<std::int64_t> prompt_tokens(const Tokenizer& tokenizer,
                                                      std::string_view text, std::string_view name);

/// Returns how many of a prompt's tokens count towards the length of the generated text, with one
/// position each: all but, for an empty prompt, the last one, which precedes the text.
///
/// tokens: prompt_tokens of `text`.
[[nodiscard]] std::int64_t prompt_length(std::string_view text,
                                         std::span<const std::int64_t> tokens);

}  // namespace dtrain::data
