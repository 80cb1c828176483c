// The style and the program of the page: page.css and page.js, which the build makes texts of.
#pragma once

#include <string_view>

namespace dtrain::report {

extern const std::string_view kPageStyle;
extern const std::string_view kPageProgram;

}  // namespace dtrain::report
