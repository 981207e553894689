#pragma once
#include <string>

namespace colossal::cli {

/// Returns the path of the text that data.path = "builtin" stands for, data::project_text(). It is the first of these
/// that exists, else the third one:
///   share/colossal/builtin_text.gz of the installation that this program is in (data/texts/text_archive.h), or
///   builtin_text.gz beside this program, in the Python package;
///   packed/builtin_text.gz in the build tree of the library;
///   the folder of the sources that the library was built from, as a whole;
///   the file of the first line in the prefix that the build was configured for: a program outside of an installation
///   may be linked against an installed library.
std::string builtin_text();

}  // namespace colossal::cli
