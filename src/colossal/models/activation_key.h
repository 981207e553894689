// The activation of the feed-forward layers as a key of [model] and of config.json, for families that do not fix it.
#pragma once
#include <string>

#include "colossal/base/fields.h"

namespace colossal::models {

class FolderKeys;

/// Visits the key `activation`, a name that ops::activation() supports.
void activation_field(Fields& f, std::string& activation);

/// The row of the activation in config.json. `otherwise`: the default of the family's config class.
/// Errors ("model"): an activation that ops::activation() does not support.
void activation_key(FolderKeys& k, const char* key, std::string& activation, const char* otherwise);

}  // namespace colossal::models
