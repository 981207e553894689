// The verifiers of the library, one function for each kind. built_in_verifiers() has their names and what they judge.
#pragma once
#include <memory>

#include "colossal/text/verifiers/comparisons.h"
#include "colossal/text/verifiers/verifier.h"

namespace colossal::text {

/// exact, number, strict, flexible, f1, rouge
std::unique_ptr<Verifier> compared_with_answer(const Comparison& comparison);
std::unique_ptr<Verifier> found_pattern();   ///< regex
std::unique_ptr<Verifier> valid_json();      ///< json
std::unique_ptr<Verifier> tags_in_order();   ///< tags
std::unique_ptr<Verifier> limited_length();  ///< length

}  // namespace colossal::text
