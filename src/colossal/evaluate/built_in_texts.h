// The files of the built-in tasks, evaluate/tasks/NAME.toml, linked into the program (cmake/EmbedTexts.cmake).
#pragma once
#include <string_view>

namespace colossal::evaluate {

std::string_view arc_challenge();
std::string_view arc_easy();
std::string_view ceval();
std::string_view cmmlu();
std::string_view gsm8k();
std::string_view hellaswag();
std::string_view mmlu();

}  // namespace colossal::evaluate
