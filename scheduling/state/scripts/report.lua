-- What a gateway's attempts came to since it last said so: opaque here. data (JSON) -> ok
notify('a', ARGV[1])
return 'ok'
