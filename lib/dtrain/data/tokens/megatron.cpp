#include "dtrain/data/tokens/megatron.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace dtrain::data {
namespace {

using base::ErrorKind;
using namespace std::string_view_literals;

constexpr std::string_view kIndexMagic = "MMIDIDX\0\0"sv;
constexpr std::string_view kOldIndexMagic = "TNTIDX\0\0"sv;
// Byte offsets in the index. The header is followed by the length of each sequence (int32), the
// byte offset of each sequence in the token file (int64), and the first sequence of each document,
// with the number of sequences as last entry (int64).
constexpr std::int64_t kIndexVersionAt = 9;
constexpr std::int64_t kIndexTypeAt = 17;
constexpr std::int64_t kIndexSequencesAt = 18;
constexpr std::int64_t kIndexDocumentsAt = 26;
constexpr std::int64_t kIndexHeaderBytes = 34;

constexpr base::FileRole kIndexFile{
    ErrorKind::data, "index",
    "copy it again, beside its tokens, or rename it if it is not the index of these tokens"};

template <typename... Args>
[[noreturn]] void refuse_index(const base::InputFile& index, fmt::format_string<Args...> found,
                               Args&&... args) {
  base::fail(ErrorKind::data, "Megatron index '{}' {}", index.path(),
             fmt::format(found, std::forward<Args>(args)...));
}

std::optional<NumberType> index_type_of(std::uint8_t code) {
  switch (code) {
    case 1:
      return NumberType{1, false};
    case 2:
      return NumberType{1, true};
    case 3:
      return NumberType{2, true};
    case 4:
      return NumberType{4, true};
    case 5:
      return NumberType{8, true};
    case 8:
      return NumberType{2, false};
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string index_path_of(const std::string& tokens) {
  constexpr std::string_view kEnding = ".bin";
  return tokens.ends_with(kEnding) ? tokens.substr(0, tokens.size() - kEnding.size()) + ".idx" : "";
}

std::unique_ptr<MegatronIndex> MegatronIndex::open(const base::InputFile& tokens) {
  const std::string path = index_path_of(tokens.path());
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return nullptr;
  return std::unique_ptr<MegatronIndex>(
      new MegatronIndex(base::InputFile::open(path, kIndexFile), tokens.size()));
}

MegatronIndex::MegatronIndex(base::InputFile index, std::int64_t bytes_of_tokens)
    : index_(std::move(index)) {
  if (index_.size() < kIndexHeaderBytes) {
    refuse_index(index_, "is truncated: its {} bytes are too few for its header; copy it again",
                 index_.size());
  }
  std::string magic(kIndexMagic.size(), '\0');
  index_.read(0, std::as_writable_bytes(std::span(magic)));
  if (magic.starts_with(kOldIndexMagic)) {
    refuse_index(index_,
                 "has the old format TNTIDX; create it again with Megatron's --dataset-impl mmap");
  }
  const auto version = number_at<std::uint64_t>(kIndexVersionAt);
  if (magic != kIndexMagic || version != 1) {
    refuse_index(index_, "{}; rename it if it is not the index of these tokens",
                 magic == kIndexMagic
                     ? fmt::format("has version {}, but only version 1 is supported", version)
                     : "does not begin with MMIDIDX");
  }
  const auto code = number_at<std::uint8_t>(kIndexTypeAt);
  const auto type = index_type_of(code);
  if (!type) {
    refuse_index(index_, "gives token type {}, which is not an integer type; create it again",
                 code);
  }
  type_ = *type;
  num_sequences_ = number_at<std::int64_t>(kIndexSequencesAt);
  num_documents_ = std::max(number_at<std::int64_t>(kIndexDocumentsAt), std::int64_t{0}) - 1;
  num_tokens_ = bytes_of_tokens / type_.bytes;
  check_size(bytes_of_tokens);
}

void MegatronIndex::check_size(std::int64_t bytes_of_tokens) const {
  constexpr std::int64_t kBytesOfSequence = 12;
  constexpr std::int64_t kBytesOfDocument = 8;
  const std::int64_t most = index_.size() / kBytesOfDocument;
  const bool is_whole = num_sequences_ > 0 && num_sequences_ <= most && num_documents_ >= 0 &&
                        num_documents_ < most &&
                        kIndexHeaderBytes + num_sequences_ * kBytesOfSequence +
                                (num_documents_ + 1) * kBytesOfDocument <=
                            index_.size();
  if (!is_whole) {
    refuse_index(index_,
                 "is truncated: {} bytes are too few for {} sequences and {} documents; copy it "
                 "again",
                 index_.size(), num_sequences_, num_documents_);
  }
  const auto length = number_at<std::int32_t>(kIndexHeaderBytes + 4 * (num_sequences_ - 1));
  const auto begin =
      number_at<std::int64_t>(kIndexHeaderBytes + 4 * num_sequences_ + 8 * (num_sequences_ - 1));
  const bool path_exists =
      0 <= begin && begin <= bytes_of_tokens;  // otherwise the sum may overflow
  const std::int64_t end = path_exists ? begin + type_.bytes * length : begin;
  if (end == bytes_of_tokens) return;
  refuse_index(index_, "gives {} bytes of tokens, but their file has {}; copy both files again",
               end, bytes_of_tokens);
}

template <typename Number>
Number MegatronIndex::number_at(std::int64_t offset) const {
  Number number{};
  index_.read(offset, std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

std::int64_t MegatronIndex::end_of_document(std::int64_t document) const {
  const std::int64_t begins_at = kIndexHeaderBytes + 4 * num_sequences_;
  const std::int64_t documents_at = begins_at + 8 * num_sequences_;
  const auto sequence = number_at<std::int64_t>(documents_at + 8 * (document + 1));
  const bool is_known = 0 <= sequence && sequence <= num_sequences_;
  if (sequence == num_sequences_) return num_tokens_;
  const std::int64_t end =
      is_known ? number_at<std::int64_t>(begins_at + 8 * sequence) / type_.bytes : -1;
  if (last_end_ <= end && end <= num_tokens_) return end;
  refuse_index(index_,
               "is damaged: document {} ends at sequence {} of {}, token {} of {}; copy it again",
               document, sequence, num_sequences_, end, num_tokens_);
}

std::vector<std::int64_t> MegatronIndex::ends_up_to(std::int64_t limit) {
  std::vector<std::int64_t> ends;
  for (; next_document_ < num_documents_; ++next_document_) {
    const std::int64_t end = end_of_document(next_document_);
    if (end > limit) break;
    ends.push_back(end);
    last_end_ = end;
  }
  return ends;
}

}  // namespace dtrain::data
