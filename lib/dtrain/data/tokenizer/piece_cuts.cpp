#include "dtrain/data/tokenizer/piece_cuts.h"

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/data/tokenizer/utf8.h"

namespace dtrain::data {
namespace {

constexpr std::string_view kSample =
    "The quick brown fox,  3 times:\njumps over (the)   lazy dogs. E.g. 2024-01-02;\nit's a "
    "\"word\" "
    "and another_one @ home\nend";

/// Characters of which SentencePiece's normalizers make neither nothing nor a space, and which they
/// never join with a space or a line's end.
struct Range {
  char32_t first;
  char32_t last;
};
constexpr Range kVisible[] = {
    {U'!', U'~'},     {0xAB, 0xAB},     {0xBB, 0xBB},      // ASCII, quotation marks
    {0xC0, 0x2AF},    {0x388, 0x3FF},   {0x400, 0x481},    // Latin, Greek, Cyrillic
    {0x48A, 0x52F},   {0x531, 0x556},   {0x561, 0x587},    // Cyrillic, Armenian
    {0x5D0, 0x5EA},   {0x620, 0x64A},   {0x660, 0x669},    // Hebrew, Arabic
    {0x671, 0x6D3},   {0x904, 0x939},   {0x964, 0x96F},    // Arabic, Devanagari
    {0xE01, 0xE30},   {0xE40, 0xE46},   {0x2013, 0x2014},  // Thai, dashes
    {0x2018, 0x201F}, {0x2026, 0x2026}, {0x3001, 0x3002},  // quotation marks, full stops
    {0x3008, 0x3011}, {0x3041, 0x3096}, {0x30A1, 0x30FA},  // brackets, kana
    {0x30FC, 0x30FC}, {0x3400, 0x4DBF}, {0x4E00, 0x9FFF},  // Han
    {0xAC00, 0xD7A3}, {0xFF01, 0xFF5E}};                   // Hangul, wide forms of ASCII

bool is_visible(char32_t character) {
  const auto* const range = std::ranges::lower_bound(kVisible, character, {}, &Range::last);
  return range != std::end(kVisible) && range->first <= character;
}
bool begins_visible(std::string_view text) { return is_visible(first_character(text)); }
bool ends_visible(std::string_view text) { return is_visible(last_character(text)); }

std::vector<int> ids_of(const PieceModel& model, std::string_view text) {
  std::vector<int> ids;
  std::string obstacle;
  if (!model.encode(text, ids, obstacle)) {
    base::fail(base::ErrorKind::internal, "SentencePiece: {}", obstacle);
  }
  return ids;
}

std::vector<int> joined(std::vector<int> first, const std::vector<int>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Whether a space stands behind another character.
bool holds_space_within(std::string_view piece) {
  while (piece.starts_with(kSpaceMark)) piece.remove_prefix(kSpaceMark.size());
  return piece.find(kSpaceMark) != piece.npos || piece.find(' ') != piece.npos;
}

bool holds_newline_within(std::string_view piece) {
  return piece.find('\n') != piece.npos && piece.find_first_not_of('\n') != piece.npos;
}

template <typename Condition>
bool any_piece(const PieceModel& model, Condition condition) {
  for (int id = 0; id < model.size(); ++id) {
    if (model.kind(id) == PieceModel::Kind::normal && condition(model.piece(id))) return true;
  }
  return false;
}

bool has_unknown(const PieceModel& model, const std::vector<int>& ids) {
  return std::ranges::any_of(ids,
                             [&](int id) { return model.kind(id) == PieceModel::Kind::unknown; });
}

/// A space by itself, so that unknown characters before and after it never become one token.
bool knows_space(const PieceModel& model) {
  return any_piece(model, [](std::string_view piece) { return piece == kSpaceMark; });
}

}  // namespace

PieceCuts::PieceCuts(const PieceModels& models) {
  const PieceModel& own = *models.own;
  cuts_at_spaces_ = knows_space(own) && !any_piece(own, holds_space_within);
  joins_spaces_ = ids_of(own, "a  b") == ids_of(own, "a b");
  const std::vector<int> alone = ids_of(*models.bare, "\n");
  if (cuts_at_spaces_ && ids_of(own, "a\nb") == ids_of(own, "a b")) {
    newline_ = Newline::is_space;
  } else if (!alone.empty() && !has_unknown(own, alone) && !any_piece(own, holds_newline_within) &&
             ids_of(own, "a\nb") ==
                 joined(joined(ids_of(own, "a"), alone), ids_of(*models.bare, "b"))) {
    newline_ = Newline::stands_alone;
  }
  if (!confirms(models)) {
    cuts_at_spaces_ = false;
    newline_ = Newline::no_cut;
  }
}

bool PieceCuts::may_cut(std::string_view text, std::size_t at) const {
  const std::string_view before = text.substr(0, at);
  const std::string_view rest = text.substr(at);
  if (is_space(rest.front())) {
    if (!cuts_at_spaces_ || !ends_visible(before)) return false;
    std::size_t end = 1;
    while (end < rest.size() && is_space(rest[end])) ++end;
    return begins_visible(rest.substr(end));
  }
  return newline_ == Newline::stands_alone && ((rest.front() == '\n' && ends_visible(before)) ||
                                               (before.back() == '\n' && begins_visible(rest)));
}

bool PieceCuts::confirms(const PieceModels& models) const {
  std::vector<int> in_parts;
  std::size_t begin = 0;
  for (std::size_t at = 1; at <= kSample.size(); ++at) {
    if (at < kSample.size() && !may_cut(kSample, at)) continue;
    in_parts = joined(std::move(in_parts),
                      encode_part(models, *this, kSample.substr(begin, at - begin), begin == 0));
    begin = at;
  }
  return in_parts == ids_of(*models.own, kSample);
}

std::vector<int> encode_part(const PieceModels& models, const PieceCuts& cuts,
                             std::string_view part, bool begins_document) {
  if (begins_document) return ids_of(*models.own, part);
  std::size_t spaces = 0;
  while (spaces < part.size() && cuts.is_space(part[spaces])) ++spaces;
  const bool is_word = 0 < spaces && begins_visible(part.substr(spaces));
  if (!is_word || !cuts.joins_spaces()) return ids_of(*models.bare, part);
  return ids_of(*models.spaced, part.substr(spaces));
}

}  // namespace dtrain::data
