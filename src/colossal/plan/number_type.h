// Types of numbers that products and messages are priced by.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace colossal::plan {

enum class NumberType : uint8_t { Fp64, Fp32, Bf16, Fp16, Fp8 };

/// Returns the name in profiles: "fp64", "fp32", "bf16", "fp16", "fp8".
const char* to_string(NumberType type);
/// Returns the bytes of one element.
int64_t bytes_of(NumberType type);
/// Returns the type that a name means, in the spelling of profiles or of PyTorch ("float32"). Nothing for other names.
std::optional<NumberType> number_type_named(std::string_view name);
/// Returns the type of a c10::ScalarType, as StepEvent::dtype holds it. Integers and other types count as fp32.
NumberType number_type_of(uint8_t scalar_type);

}  // namespace colossal::plan
