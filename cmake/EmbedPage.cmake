# Writes OUT, a .cpp file that defines the functions of serve/page.h, from PAGE, the HTML file of the chat page.
#   cmake -D PAGE=FILE -D OUT=FILE -P EmbedPage.cmake
file(READ ${PAGE} page)

# The text between <name> and </name>, which the page must have once.
function(element_text name out)
  string(FIND "${page}" "<${name}>" begin)
  string(FIND "${page}" "<${name}>" last REVERSE)
  string(FIND "${page}" "</${name}>" end)
  if(begin EQUAL -1 OR NOT begin EQUAL last OR end LESS begin)
    message(FATAL_ERROR "${PAGE} must have one element <${name}> without attributes")
  endif()
  string(LENGTH "<${name}>" length)
  math(EXPR begin "${begin} + ${length}")
  math(EXPR length "${end} - ${begin}")
  string(SUBSTRING "${page}" ${begin} ${length} text)
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

# The SHA-256 of a text in base64, as Content-Security-Policy has it: three hexadecimal digits are two characters.
function(sha256_base64 text out)
  set(characters ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  string(SHA256 digest "${text}")
  string(APPEND digest 00)  # 66 digits, which three divides
  set(base64)
  foreach(at RANGE 0 63 3)
    string(SUBSTRING ${digest} ${at} 3 digits)
    foreach(shift 6 0)
      math(EXPR value "(0x${digits} >> ${shift}) & 63")
      string(SUBSTRING ${characters} ${value} 1 character)
      string(APPEND base64 ${character})
    endforeach()
  endforeach()
  string(SUBSTRING ${base64} 0 43 base64)
  set(${out} "${base64}=" PARENT_SCOPE)
endfunction()

element_text(script script)
element_text(style style)
sha256_base64("${script}" script_hash)
sha256_base64("${style}" style_hash)
string(CONCAT policy "default-src 'none'; script-src 'sha256-${script_hash}'; style-src 'sha256-${style_hash}'; "
  "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
  "require-trusted-types-for 'script'; trusted-types 'none'")
file(WRITE ${OUT} "// Written from serve/page.html by cmake/EmbedPage.cmake.
#include \"colossal/serve/page.h\"

namespace colossal::serve {

std::string_view page_html() { return R\"page(${page})page\"; }

const char* page_policy() { return \"${policy}\"; }

}  // namespace colossal::serve
")
