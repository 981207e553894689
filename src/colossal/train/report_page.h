// What every report carries unchanged: its style sheet and the script that shows values under the pointer.
#pragma once

namespace colossal::train {

extern const char* const kReportStyle;
extern const char* const kReportScript;

}  // namespace colossal::train
