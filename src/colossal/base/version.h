#pragma once

namespace colossal {

/// Returns the version of the library, such as "0.1.0".
const char* version();

/// Returns the commit that this build was made from, such as "3f2a91c0d4e5". It ends in "-dirty" if the sources had
/// changes, and is empty if the sources were in no repository.
const char* revision();

}  // namespace colossal
