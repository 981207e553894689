# Texts of files as functions of C++: scripts, styles and pages are edited as what they are, and linked into the
# program.
#
#   colossal_embed_texts(serve/page.h page_html=page.html POLICY page_policy=page.html)
#
# defines `std::string_view page_html()`, which serve/page.h declares, in a unit of the layer `serve`. It is written
# from src/colossal/serve/page.html. The function of POLICY returns the value of Content-Security-Policy that allows the
# script and the style of a page, as `const char*`.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  function(colossal_embed_texts header)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "POLICY" "")
    cmake_path(GET header PARENT_PATH layer)
    set(folder ${PROJECT_SOURCE_DIR}/src/colossal/${layer})
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/${layer}_texts.cpp)
    set(texts ${arg_UNPARSED_ARGUMENTS})
    set(files ${texts} ${arg_POLICY})
    list(TRANSFORM files REPLACE "^.+=" "${folder}/")
    set(script ${CMAKE_CURRENT_FUNCTION_LIST_FILE})
    add_custom_command(OUTPUT ${unit} DEPENDS ${files} ${script} VERBATIM COMMAND ${CMAKE_COMMAND} -D HEADER=${header}
      -D FOLDER=${folder} -D "TEXTS=${texts}" -D "POLICY=${arg_POLICY}" -D OUT=${unit} -P ${script})
    target_sources(colossal_${layer} PRIVATE ${unit})
    set_source_files_properties(${unit} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endfunction()
  return()
endif()

# The text between <name> and </name>, which `page` must have once.
function(element_text page name out)
  string(FIND "${page}" "<${name}>" begin)
  string(FIND "${page}" "<${name}>" last REVERSE)
  string(FIND "${page}" "</${name}>" end)
  if(begin EQUAL -1 OR NOT begin EQUAL last OR end LESS begin)
    message(FATAL_ERROR "${POLICY}: the page must have one element <${name}> without attributes")
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

# The value of Content-Security-Policy for a page: its own script and style, which are named by their SHA-256, and
# requests to its own server.
function(policy_of page out)
  element_text("${page}" script script)
  element_text("${page}" style style)
  sha256_base64("${script}" script_hash)
  sha256_base64("${style}" style_hash)
  string(CONCAT policy "default-src 'none'; script-src 'sha256-${script_hash}'; style-src 'sha256-${style_hash}'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'")
  set(${out} "${policy}" PARENT_SCOPE)
endfunction()

set(functions)
foreach(text ${TEXTS})
  string(REGEX MATCH "^(.+)=(.+)$" _ "${text}")
  set(name ${CMAKE_MATCH_1})
  file(READ ${FOLDER}/${CMAKE_MATCH_2} content)
  string(APPEND functions "std::string_view ${name}() { return R\"text(${content})text\"; }\n\n")
endforeach()
if(POLICY)
  string(REGEX MATCH "^(.+)=(.+)$" _ "${POLICY}")
  set(name ${CMAKE_MATCH_1})
  file(READ ${FOLDER}/${CMAKE_MATCH_2} content)
  policy_of("${content}" policy)
  string(APPEND functions "const char* ${name}() { return \"${policy}\"; }\n\n")
endif()
cmake_path(GET HEADER PARENT_PATH layer)
file(WRITE ${OUT} "// Written by cmake/EmbedTexts.cmake.
#include \"colossal/${HEADER}\"

namespace colossal::${layer} {

${functions}}  // namespace colossal::${layer}
")
