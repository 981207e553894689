// Calls of functions from the text between the marks of a form (call_forms.h).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "colossal/serve/tool_calls.h"

namespace colossal::serve {

// Each function returns the calls that the text describes; none = the text is something else, or its meaning is not
// certain. Errors: none.

/// Reads an object or a list of objects. An object has a name ("name" or "function") and its arguments ("arguments" or
/// "parameters"): an object or a text that holds one. After an opening (`is_marked`) the arguments may lack, and
/// {NAME: ARGUMENTS} is a call, too.
std::vector<ToolCall> json_calls(std::string_view json, bool is_marked, const ToolCallOptions& options);

/// Reads a call whose name is within `head`, before the JSON of its arguments.
std::vector<ToolCall> named_call(std::string_view head, std::string_view separator, std::string_view arguments,
                                 const ToolCallOptions& options);

/// Reads calls that are written as tags. The parameters in options.tools decide whether a value is text or JSON.
std::vector<ToolCall> tagged_calls(std::string_view section, const ToolCallOptions& options);

/// Reads calls whose arguments are literals: [f(a='x', n=1)] or call:f{a:<|"|>x<|"|>,n:1}.
std::vector<ToolCall> literal_calls(std::string_view section, const ToolCallOptions& options);

/// Returns false if no text that begins with `section` can be calls as tags.
bool may_be_tagged(std::string_view section, const ToolCallOptions& options);

/// Returns the function that `written` names; "" = none. Some models add a namespace and the number of the call.
std::string name_of_function(std::string_view written, const ToolCallOptions& options);

/// Returns true if one text begins with the other.
bool agree(std::string_view a, std::string_view b);

}  // namespace colossal::serve
