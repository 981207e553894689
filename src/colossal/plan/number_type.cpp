#include "colossal/plan/number_type.h"

namespace colossal::plan {
namespace {

struct NamedNumberType {
  NumberType type;
  const char* name;
  const char* torch_name;
  int64_t bytes;
};

constexpr NamedNumberType kNumberTypes[] = {{NumberType::Fp64, "fp64", "float64", 8},
                                            {NumberType::Fp32, "fp32", "float32", 4},
                                            {NumberType::Bf16, "bf16", "bfloat16", 2},
                                            {NumberType::Fp16, "fp16", "float16", 2},
                                            {NumberType::Fp8, "fp8", "float8_e4m3fn", 1}};

}  // namespace

const char* to_string(NumberType type) { return kNumberTypes[static_cast<int>(type)].name; }

int64_t bytes_of(NumberType type) { return kNumberTypes[static_cast<int>(type)].bytes; }

std::optional<NumberType> number_type_named(std::string_view name) {
  for (const auto& known : kNumberTypes)
    if (name == known.name || name == known.torch_name) return known.type;
  return std::nullopt;
}

NumberType number_type_of(uint8_t scalar_type) {
  switch (scalar_type) {  // the codes are part of PyTorch's file format, so they do not change
    case 5: return NumberType::Fp16;
    case 7: return NumberType::Fp64;
    case 15: return NumberType::Bf16;
    case 23:
    case 24: return NumberType::Fp8;
    default: return NumberType::Fp32;
  }
}

}  // namespace colossal::plan
