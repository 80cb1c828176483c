#include "dtrain/data/tokenizer/hugging_face/byte_pairs.h"

#include <algorithm>
#include <bit>

#include "dtrain/data/tokenizer/hugging_face/byte_alphabet.h"

namespace dtrain::data {
namespace {

using Candidate = BytePairBuffers::Candidate;
using Symbol = BytePairBuffers::Symbol;

constexpr std::uint32_t position_of(const Candidate& candidate) {
  return static_cast<std::uint32_t>(candidate.rank_and_position);
}

// Orders a heap whose top has the lowest rank and, of equal ranks, the lowest position.
bool is_later(const Candidate& a, const Candidate& b) {
  return a.rank_and_position > b.rank_and_position;
}

std::uint64_t pair_of(std::uint32_t left, std::uint32_t right) {
  return std::uint64_t{left} << 32 | right;
}

std::size_t hash_of(std::uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15;  // 2^64 divided by the golden ratio
  return static_cast<std::size_t>(pair ^ pair >> 32);
}

}  // namespace

BytePairs::BytePairs(const BytePairModel& model) : fuses_unknown_(model.fuses_unknown) {
  TextMap<std::uint32_t> vocab;
  vocab.reserve(model.vocab.size());
  for (const auto& [token, id] : model.vocab) vocab.emplace(token, id);
  for (std::size_t byte = 0; byte < token_of_byte_.size(); ++byte) {
    const auto found = vocab.find(letter_of(static_cast<std::uint8_t>(byte)));
    token_of_byte_[byte] = found == vocab.end() ? kNone : found->second;
  }
  if (!model.unknown.empty()) unknown_ = vocab.at(model.unknown);
  merges_.resize(std::bit_ceil(2 * model.merges.size() + 1));
  std::uint32_t rank = 0;
  for (const auto& [left, right] : model.merges) {
    add({.pair = pair_of(vocab.at(left), vocab.at(right)),
         .rank = rank++,
         .merged = vocab.at(left + right)});
  }
  if (!model.ignores_merges) return;
  for (const auto& [token, id] : model.vocab) {
    if (auto bytes = bytes_of_letters(token)) words_.emplace(std::move(*bytes), id);
  }
}

void BytePairs::add(const Merge& merge) {
  std::size_t at = hash_of(merge.pair) & (merges_.size() - 1);
  while (merges_[at].pair != kNoPair) at = (at + 1) & (merges_.size() - 1);
  merges_[at] = merge;
}

const BytePairs::Merge* BytePairs::find(std::uint32_t left, std::uint32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  for (std::size_t at = hash_of(pair) & (merges_.size() - 1);;
       at = (at + 1) & (merges_.size() - 1)) {
    if (merges_[at].pair == pair) return &merges_[at];
    if (merges_[at].pair == kNoPair) return nullptr;
  }
}

// The symbols of single bytes, linked to their neighbours.
void BytePairs::split(std::string_view word, std::vector<Symbol>& symbols) const {
  symbols.clear();
  bool follows_unknown = false;
  for (const char c : word) {
    const std::uint32_t token = token_of_byte_[static_cast<unsigned char>(c)];
    const bool is_unknown = token == kNone;
    if (is_unknown && (unknown_ == kNone || (fuses_unknown_ && follows_unknown))) continue;
    follows_unknown = is_unknown;
    const auto at = static_cast<std::uint32_t>(symbols.size());
    symbols.push_back({.token = is_unknown ? unknown_ : token,
                       .previous = at - 1,  // kNone for the first
                       .next = at + 1,
                       .is_merged = false});
  }
  if (!symbols.empty()) symbols.back().next = kNone;
}

// Adds the merge of the symbol with its successor, if there is one.
void BytePairs::consider(std::uint32_t position, BytePairBuffers& buffers) const {
  if (position == kNone || buffers.symbols[position].next == kNone) return;
  const Symbol& left = buffers.symbols[position];
  const Merge* const merge = find(left.token, buffers.symbols[left.next].token);
  if (merge == nullptr) return;
  buffers.heap.push_back({pair_of(merge->rank, position), merge->merged});
  std::ranges::push_heap(buffers.heap, is_later);
}

void BytePairs::encode(std::string_view word, BytePairBuffers& buffers,
                       std::vector<std::uint32_t>& tokens) const {
  if (const auto found = words_.find(word); found != words_.end()) {
    tokens.push_back(found->second);
    return;
  }
  std::vector<Symbol>& symbols = buffers.symbols;
  split(word, symbols);
  buffers.heap.clear();
  for (std::uint32_t at = 0; at < symbols.size(); ++at) consider(at, buffers);
  while (!buffers.heap.empty()) {
    const Candidate top = buffers.heap.front();
    std::ranges::pop_heap(buffers.heap, is_later);
    buffers.heap.pop_back();
    Symbol& left = symbols[position_of(top)];
    if (left.is_merged || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    // The pair may have changed since it was added, to one that merges to the same token.
    const Merge* const merge = find(left.token, right.token);
    if (merge == nullptr || merge->merged != top.merged) continue;
    left.token = top.merged;
    left.next = right.next;
    right.is_merged = true;
    if (left.next != kNone) symbols[left.next].previous = position_of(top);
    consider(left.previous, buffers);
    consider(position_of(top), buffers);
  }
  for (const Symbol& symbol : symbols) {
    if (!symbol.is_merged) tokens.push_back(symbol.token);
  }
}

}  // namespace dtrain::data
