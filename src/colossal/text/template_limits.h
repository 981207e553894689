#pragma once
#include <cstdint>

namespace colossal::text {

/// The limits of a chat template and of one rendering. A template comes with a model and is untrusted: it may loop
/// forever, build texts of any size or nest without bound.
struct TemplateLimits {
  int64_t template_bytes = int64_t{1} << 20;  ///< maximum size of the template
  int64_t steps = 8'000'000;                  ///< maximum number of nodes evaluated and items walked in one rendering:
                                              ///< about a second
  int64_t bytes = int64_t{128} << 20;         ///< maximum size of all texts and lists that one rendering creates, freed
                                              ///< ones included
  int64_t output_bytes = int64_t{64} << 20;   ///< maximum size of the rendered text
  int nesting = 250;                          ///< maximum nesting of expressions and blocks in the template
  int depth = 1200;                           ///< maximum nesting during evaluation, calls of macros included
};

}  // namespace colossal::text
