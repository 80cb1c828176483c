// A run report: one HTML page that needs nothing but itself.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dtrain/report/run_record.h"

namespace dtrain::report {

/// First characters of a page: a file that starts with them may be overwritten.
inline constexpr std::string_view kPageMark = "<!DOCTYPE html>\n<!-- dtrain report -->\n";

/// The style and the program of a page: page.css and page.js, which the build makes texts of.
extern const std::string_view kPageStyle;
extern const std::string_view kPageProgram;

/// Longer curves are thinned to the lowest and the highest of neighbouring points. More runs than
/// kMaxFullCurves share the points of that many: a page of 100 full runs would take 40 MB.
inline constexpr std::size_t kMaxPoints = 2000;
inline constexpr std::size_t kMaxFullCurves = 20;

/// The first, the last and, of each stretch in between, the lowest and the highest finite point of
/// a curve and its first that is not finite; all of them if there are no more than `most`.
[[nodiscard]] Curve thinned(const Curve& curve, std::size_t most);

/// The page's data, as docs/views.md describes it.
///
/// version, written: who wrote the page and when, for people.
[[nodiscard]] Json page_data(const std::vector<RunRecord>& runs, const std::string& version,
                             const std::string& written);

/// The page. All text of the runs is data, which no browser takes for markup or a program.
[[nodiscard]] std::string page_of(const Json& data);

}  // namespace dtrain::report
